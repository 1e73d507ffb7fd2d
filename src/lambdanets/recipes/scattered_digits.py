"""Scanned digits scattered over 300 small images, small LambdaResNet: mask AP50 92% on 60 validation images.

Hardware: two CPU cores, 14 minutes. One seed; the learning rate was tuned on the validation images. No download.
Run: lambdanets train scattered_digits
"""

from lambdanets.tasks.recipes import DetectionRecipe

recipe = DetectionRecipe(
    data="digits",
    model="lambda_resnet20_small",
    image_size=128,
    flip=0.0,
    levels=(2, 3, 4),
    pyramid_channels=64,
    box_layers=(0, 128),
    mask_layers=2,
    anchor_scale=4.0,
    proposals=500,
    sampled_regions=128,
    warmup_epochs=2.0,
    clip_gradient=10.0,
)
