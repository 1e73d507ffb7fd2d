"""Scanned digits scattered over 300 small images, U-Net with lambda layers; mean Dice not measured yet.

No download. 60 validation images.
Run: lambdanets segment train digits
"""

from lambdanets.training.segmentation.recipe import SegmentationRecipe

recipe = SegmentationRecipe(data="digits", image_size=96, flip=0.0, mean=(0.1, 0.1, 0.1), std=(0.2, 0.2, 0.2))
