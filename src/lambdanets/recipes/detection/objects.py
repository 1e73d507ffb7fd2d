"""Your own images, annotated as COCO's are, small LambdaResNet at 512 pixels. Not measured by this project.

One GPU, or two cores for some hundred images; how long depends on how many. Give what is to be found, and where:
Run: lambdanets detect train objects --data TRAIN --images FOLDER --validation-data VALIDATION --run DIR
"""

from lambdanets.training.detection.recipe import DetectionRecipe

recipe = DetectionRecipe(
    images="",
    validation_data="",
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
    checkpoint_every=200,
)
