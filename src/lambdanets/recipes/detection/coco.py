"""COCO at 1024x1024, Mask R-CNN from scratch (Sec. F.3; Table 14): the paper has 43.3% mask AP with LambdaResNet-152.

130,000 steps of 256 images, as 128 TPUv3 cores x 2; fewer devices take their share in parts. The variants are the rows
of Table 14: coco_lambda101 and coco_lambda152, their twins coco_resnetrs101 and coco_resnetrs152, without
squeeze-and-excitation, and coco_resnetrs101_se and coco_resnetrs152_se.
Not run in full by this project; --quicktest takes the same path with scattered digits in a minute on two cores.
Run: lambdanets detect train coco --data instances_train2017.json --images train2017 --validation-data
instances_val2017.json --validation-images val2017 --devices 8 --run DIR
"""

from lambdanets.training.detection.recipe import DetectionRecipe

IMAGES, BATCH, STEPS = 118_287, 256, 130_000
STEPS_AN_EPOCH = IMAGES // BATCH

recipe = DetectionRecipe(
    data="",
    images="",
    validation_data="",
    model="lambda_resnet152",
    sync_batch_norm=True,
    image_size=1024,
    jitter=(0.1, 2.0),
    flip=0.5,
    levels=(1, 2, 3, 4),
    pyramid_channels=256,
    box_layers=(4, 1024),
    mask_layers=4,
    anchor_scale=8.0,
    proposals=1000,
    sampled_regions=512,
    epochs=round(STEPS / STEPS_AN_EPOCH),
    batch_size=BATCH,
    learning_rate=0.32,
    warmup_epochs=1000 / STEPS_AN_EPOCH,
    schedule="late_steps",
    weight_decay=4e-5,
    clip_gradient=None,
    workers=8,
    checkpoint_every=500,
)
