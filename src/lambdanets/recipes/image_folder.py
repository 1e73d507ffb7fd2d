"""Image folder with one sub-folder per class, a small LambdaResNet at 64x64; accuracy depends on the data.

For hundreds or thousands of images: 0.4 million parameters, a quarter of the time per image of image_folder_50, which
trains LambdaResNet-50 at 128x128 and is for more images and a GPU. Fine-tuning is usually more accurate: the command
lambdanets adopt lambda_resnet26t --out WEIGHTS downloads ImageNet weights of timm for the recipe finetune.
Hardware: two CPU cores.
Run: lambdanets train image_folder --data FOLDER
"""

from dataclasses import replace

from lambdanets.tasks.recipes import ClassificationRecipe

recipe = ClassificationRecipe(
    model="lambda_resnet20_small",
    image_size=64,
    scale=(0.25, 1.0),
    crop_pct=1.0,
    rand_augment="rand-m5-n1",
    batch_size=32,
    learning_rate=0.05,
    workers=2,
)
recipes = {
    "50": replace(
        recipe,
        model="lambda_resnet50",
        image_size=128,
        rand_augment="rand-m10-n2",
        batch_size=64,
        learning_rate=0.1,
        drop_path=0.1,
        dropout=0.2,
    )
}
