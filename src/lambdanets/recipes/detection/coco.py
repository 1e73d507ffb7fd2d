"""COCO at 1024x1024, Mask R-CNN from scratch (Sec. F.3; Table 14), with a recipe for each row. Not run in full by us.

130,000 steps of 256 images, or 281 epochs, which are 129,822; 2 images on each of 128 TPUv3 cores, fewer take their
share in parts. The paper's box and mask AP: coco_lambda101 49.4 and 43.5, coco_lambda152 (the recipe itself) 50.0 and
43.9; their twins without squeeze-and-excitation, coco_plain101 48.2 and 42.6, coco_plain152 48.9 and 43.2; with it,
coco_se101 48.5 and 42.8, coco_se152 49.4 and 43.5. The hours are not printed. --quicktest takes the same path with
scattered digits in a minute on two cores.
Run: lambdanets detect train coco --data TRAIN --images FOLDER --validation-data VALIDATION --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets.training.detection.recipe import DetectionRecipe

IMAGES, BATCH, STEPS = 118_287, 256, 130_000
STEPS_AN_EPOCH = IMAGES // BATCH

recipe = DetectionRecipe(
    images="",
    validation_data="",
    model="lambda_resnet152",
    sync_batch_norm=True,
    jitter=(0.1, 2.0),
    epochs=round(STEPS / STEPS_AN_EPOCH),
    batch_size=BATCH,
    learning_rate=0.32,
    warmup_epochs=1000 / STEPS_AN_EPOCH,
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
