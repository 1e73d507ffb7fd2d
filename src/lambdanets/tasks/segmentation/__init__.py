"""Semantic segmentation: recipe, data, augmentation, model, loss."""
