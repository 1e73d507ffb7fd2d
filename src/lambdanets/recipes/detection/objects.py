"""Your own images, annotated as COCO's are, small LambdaResNet at 512 pixels. Not measured by this project.

One GPU, or two cores for some hundred images; how long depends on how many. Give what is to be found, and where:
Run: lambdanets detect train objects --data TRAIN --images FOLDER --validation-data VALIDATION --run DIR
"""

from lambdanets.training.detection.recipe import DetectionRecipe

recipe = DetectionRecipe(
    data="",
    images="",
    validation_data="",
    model_options={"small_images": False},
    image_size=512,
    jitter=(0.5, 1.5),
    flip=0.5,
    levels=(1, 2, 3, 4),
    pyramid_channels=128,
    box_layers=(0, 512),
    mask_layers=4,
    anchor_scale=6.0,
    proposals=1000,
    sampled_regions=256,
    epochs=30,
    batch_size=8,
    learning_rate=0.02,
    warmup_epochs=1.0,
    ema_decay=0.998,
    workers=2,
    checkpoint_every=200,
)
