"""Colour photographs in a folder, a sub-folder a class, LambdaResNet-50 at 128 pixels. Accuracy depends on the images.

A GPU for anything but small sets; two CPU cores train on about 13 images a second.
Run: lambdanets train image_folder --data FOLDER
"""

from lambdanets.training.recipe import Recipe

recipe = Recipe(
    data="",
    model="lambda_resnet50",
    image_size=128,
    scale=(0.25, 1.0),
    crop_pct=1.0,
    rand_augment="rand-m10-n2",
    batch_size=64,
    drop_path=0.1,
    dropout=0.2,
)
