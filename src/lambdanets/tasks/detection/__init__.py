"""Mask R-CNN: recipe, data, augmentation, model, losses."""
