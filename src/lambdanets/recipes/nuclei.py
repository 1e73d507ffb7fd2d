"""Cell nuclei (385 images, Data Science Bowl 2018), small LambdaResNet: mask AP50 77% on 98 validation images.

Hardware: one CPU core, 31 to 35 minutes. Mean of three seeds; the recipe was tuned on the validation images. Data:
COCO-format files. Baseline: nuclei_convolution, the same network with 3x3 convolutions instead of lambda layers, also
77%.
Run: lambdanets train nuclei --data TRAIN --images TAR --validation-data VALIDATION --validation-images TAR
"""

from dataclasses import replace

from lambdanets.tasks.recipes import DetectionRecipe

recipe = DetectionRecipe(
    model="lambda_resnet20_small",
    model_options={"small_images": False},
    image_size=384,
    jitter=(0.8, 1.5),
    mean=(0.2, 0.2, 0.2),
    std=(0.2, 0.2, 0.2),
    pyramid_channels=64,
    box_layers=(0, 128),
    mask_layers=2,
    anchor_scale=4.0,
    aspect_ratios=(0.7, 1.0, 1.4),
    proposals=500,
    sampled_regions=128,
    batch_size=4,
    warmup_epochs=0.5,
    clip_gradient=10.0,
    batch_norm_momentum=0.01,
    freeze_batch_norm=0.25,
    ema_decay=0.995,
)

recipes = {
    "convolution": replace(
        recipe, model="resnet20_mixer_small", model_options={"mixer": "convolution", "small_images": False}
    )
}
