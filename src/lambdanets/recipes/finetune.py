"""Fine-tune a trained model on other data or another resolution, 20 epochs; accuracy depends on the data.

Model, model options and preprocessing, such as the image size, are taken from the weights; options override them.
Lambda layers keep their embedding tables at another image size; the tables are interpolated for another scope, such as
--model-options scope 31. The head is re-initialized if the classes differ. Hardware: one GPU, or two CPU cores for
small datasets.
Run: lambdanets train finetune --weights cifar10 --data FOLDER
"""

from dataclasses import asdict, replace

from lambdanets.data.transforms import Preprocessing
from lambdanets.recipes import image_folder

recipe = replace(
    image_folder.recipes["50"],
    weights="",
    model="",
    epochs=20,
    batch_size=16,
    learning_rate=0.01,
    warmup_epochs=1.0,
    weight_decay=4e-5,
    drop_path=0.0,
    **asdict(Preprocessing()),
)
