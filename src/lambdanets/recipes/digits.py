"""Scanned digits (scikit-learn's 1,797 images of 8x8), small LambdaResNet: at least 97% top-1 on the 360 held out.

Two CPU cores, under three minutes; no download.
Run: lambdanets train digits
"""

from lambdanets.training.recipe import Recipe

recipe = Recipe()
