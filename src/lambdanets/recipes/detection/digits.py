"""Scanned digits, scattered over 300 small images, small LambdaResNet: mask AP50 NUMBER on the 60 validated on.

Two CPU cores, MINUTES; no download.
Run: lambdanets detect train digits
"""

from lambdanets.training.detection.recipe import DetectionRecipe

recipe = DetectionRecipe()
