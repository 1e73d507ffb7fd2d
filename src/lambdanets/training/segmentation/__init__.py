"""Training of semantic segmentation: recipe, data loading, augmentation, losses and --quicktest."""
