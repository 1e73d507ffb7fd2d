"""A detection recipe that trains in about a second, and functions that edit annotation files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambdanets.data.coco.scattered_digits import CATEGORIES, scattered_digits
from lambdanets.recipes.scattered_digits import recipe as DIGITS
from lambdanets.tasks.recipes import DetectionRecipe
from training.runs import SEED, SHALLOW

NUM_TRAINING_IMAGES, NUM_VALIDATION_IMAGES = 4, 2
TWO_CATEGORIES = ({"id": 4, "name": "others"}, {"id": 7, "name": "with a loop"})


def write_scattered_digits(folder: Path, seed: int) -> None:
    """Write both splits as train.json, val.json and PNG files in train/ and val/."""
    for split, count in (("train", NUM_TRAINING_IMAGES), ("val", NUM_VALIDATION_IMAGES)):
        images = scattered_digits(split, count, seed)
        (folder / split).mkdir(parents=True)
        for index, image in enumerate(images.images):
            images.load(index)[0].save(folder / split / image.name)
        (folder / f"{split}.json").write_text(json.dumps(images.to_coco()))


def tiny_recipe(folder: Path, **changes: Any) -> DetectionRecipe:
    """Write scattered digits into a folder; return a recipe of 2 epochs of 2 steps with all random augmentations."""
    if not (folder / "train.json").exists():
        write_scattered_digits(folder, 0)
    fields = {
        "model_options": SHALLOW,
        "data": str(folder / "train.json"),
        "images": str(folder / "train"),
        "validation_data": str(folder / "val.json"),
        "validation_images": str(folder / "val"),
        "learning_rate": 0.02,
        "schedule": "cosine",
        "clip_gradient": 10.0,
        "image_size": 32,
        "jitter": (0.8, 1.25),
        "flip": 0.5,
        "levels": (2, 3),
        "pyramid_channels": 8,
        "box_layers": (1, 16),
        "mask_layers": 1,
        "proposals": 10,
        "sampled_regions": 8,
        "max_detections": 5,
        "drop_path": 0.1,
        "epochs": 2,
        "batch_size": 2,
        "warmup_epochs": 0.5,
        "checkpoint_every": 1,
        "seed": SEED,
    }
    return replace(DIGITS, **fields | changes)


def edit_annotations(path: Path, **sections: Any) -> None:
    """Replace sections of an annotation file. A section may be a function, which is called with the old section."""
    content = json.loads(path.read_bytes())
    for name, section in sections.items():
        content[name] = section(content[name]) if callable(section) else section
    path.write_text(json.dumps(content))


def merge_into_two_categories(path: Path) -> None:
    """Replace the ten categories by two: digits with a loop (0, 6, 8 and 9), and others."""
    with_loop = {CATEGORIES[digit].id for digit in (0, 6, 8, 9)}
    edit_annotations(
        path,
        categories=TWO_CATEGORIES,
        annotations=lambda annotations: [
            {**annotation, "category_id": 7 if annotation["category_id"] in with_loop else 4}
            for annotation in annotations
        ],
    )
