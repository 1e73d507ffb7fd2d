"""Training of Mask R-CNN: recipe, data loading, augmentation, losses and --quicktest."""
