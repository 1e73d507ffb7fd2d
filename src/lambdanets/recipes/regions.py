"""Your own data in COCO format, U-Net with lambda layers on crops of 256x256; Dice depends on the data.

Hardware: one GPU, or two CPU cores for a few hundred images.
Run: lambdanets train regions --data TRAIN --images FOLDER --validation-data VALIDATION --run DIR
"""

from lambdanets.tasks.recipes import SegmentationRecipe

recipe = SegmentationRecipe(
    jitter=(0.7, 1.4),
    clip_gradient=10.0,
    batch_norm_momentum=0.01,
    freeze_batch_norm=0.25,
    ema_decay=0.998,
    workers=2,
)
