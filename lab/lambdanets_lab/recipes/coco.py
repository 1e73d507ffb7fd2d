"""COCO, Mask R-CNN from scratch at 1024x1024 (Sec. F.3; Table 14): box AP 50.0, mask AP 43.9 in the paper.

Batch size 256: the paper has 2 images per core on 128 TPUv3 cores; fewer devices accumulate gradients. The paper trains
for 130,000 steps, this recipe for 281 epochs (129,822 steps). Variants, with box AP and mask AP in the paper:
coco_lambda101 (49.4, 43.5); coco_lambda152, the same as coco (50.0, 43.9); ResNet baselines without
squeeze-and-excitation, coco_plain101 (48.2, 42.6) and coco_plain152 (48.9, 43.2); ResNet baselines with
squeeze-and-excitation, coco_se101 (48.5, 42.8) and coco_se152 (49.4, 43.5).
Not run in full; --quicktest runs the same code for a few steps on small scattered digits.
Run: lambdanets train coco --data TRAIN --images FOLDER --validation-data VALIDATION --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets.tasks.recipes import DetectionRecipe

NUM_IMAGES, BATCH_SIZE, NUM_STEPS = 118_287, 256, 130_000
STEPS_PER_EPOCH = NUM_IMAGES // BATCH_SIZE

recipe = DetectionRecipe(
    model="lambda_resnet152",
    sync_batch_norm=True,
    jitter=(0.1, 2.0),
    epochs=round(NUM_STEPS / STEPS_PER_EPOCH),
    batch_size=BATCH_SIZE,
    learning_rate=0.32,
    warmup_epochs=1000 / STEPS_PER_EPOCH,
    schedule="late_steps",
    workers=8,
    checkpoint_every=500,
)

MODELS = {"lambda": "lambda_resnet{}", "plain": "resnetrs{}_plain", "se": "resnetrs{}"}
recipes = {
    f"{name}{depth}": replace(recipe, model=model.format(depth))
    for name, model in MODELS.items()
    for depth in (101, 152)
}
