"""Goes on from a trained model with other images or another resolution, 20 epochs. Accuracy depends on both.

The model, its options and its images' statistics are those of the weights. At another image size lambda layers keep
their tables; with --model-options scope 31, tables are interpolated. For classes of its own, a new classifier is drawn.
One GPU, or two CPU cores for small sets.
Run: lambdanets train finetune --weights RUN --data FOLDER --image-size 160
"""

from dataclasses import replace

from lambdanets.recipes.image_folder import recipe as image_folder

recipe = replace(
    image_folder,
    weights="",
    model="",
    epochs=20,
    learning_rate=0.01,
    warmup_epochs=1.0,
    weight_decay=4e-5,
    drop_path=0.0,
)
