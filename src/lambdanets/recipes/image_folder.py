"""Image folder with one sub-folder per class, LambdaResNet-50 at 128x128; accuracy depends on the data.

Hardware: one GPU, or two CPU cores (about 13 images/s) for small datasets.
Run: lambdanets train image_folder --data FOLDER
"""

from lambdanets.training.classification.recipe import ClassificationRecipe

recipe = ClassificationRecipe(
    data="",
    model="lambda_resnet50",
    image_size=128,
    scale=(0.25, 1.0),
    crop_pct=1.0,
    rand_augment="rand-m10-n2",
    batch_size=64,
    drop_path=0.1,
    dropout=0.2,
    workers=2,
)
