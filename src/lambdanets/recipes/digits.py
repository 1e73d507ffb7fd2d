"""scikit-learn's digits (1,797 images, 8x8), small LambdaResNet: at least 97% top-1 on 360 held-out images.

Hardware: two CPU cores, under three minutes. No download.
Run: lambdanets train digits
"""

from lambdanets.tasks.recipes import ClassificationRecipe

recipe = ClassificationRecipe(
    data="digits",
    model="lambda_resnet20_small",
    image_size=16,
    channels=1,
    mean=(0.5,),
    std=(0.25,),
    scale=(0.7, 1.0),
    ratio=(0.9, 1.1),
    crop_pct=1.0,
    flip=0.0,
    interpolation="bilinear",
    epochs=20,
    warmup_epochs=2.0,
)
