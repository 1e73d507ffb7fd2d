"""Your own data in COCO format, small LambdaResNet at 512x512; AP depends on the data.

Hardware: one GPU, or two CPU cores for a few hundred images.
Run: lambdanets train objects --data TRAIN --images FOLDER --validation-data VALIDATION --run DIR
"""

from lambdanets.tasks.recipes import DetectionRecipe

recipe = DetectionRecipe(
    model="lambda_resnet20_small",
    model_options={"small_images": False},
    image_size=512,
    jitter=(0.5, 1.5),
    pyramid_channels=128,
    box_layers=(0, 512),
    anchor_scale=6.0,
    sampled_regions=256,
    epochs=30,
    clip_gradient=10.0,
    ema_decay=0.998,
    workers=2,
)
