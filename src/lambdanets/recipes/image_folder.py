"""Colour photographs in a folder, a sub-folder a class, LambdaResNet-50 at 128 pixels. Accuracy depends on the images.

A GPU for anything but small sets; two CPU cores train on about 13 images a second.
Run: lambdanets train image_folder --data FOLDER
"""

from lambdanets.training.recipe import Recipe

recipe = Recipe(
    data="",
    model="lambda_resnet50",
    image_size=128,
    channels=3,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    scale=(0.25, 1.0),
    ratio=(0.75, 1.333),
    flip=0.5,
    rand_augment="rand-m10-n2",
    interpolation="bicubic",
    epochs=100,
    batch_size=64,
    warmup_epochs=5.0,
    drop_path=0.1,
    dropout=0.2,
)
