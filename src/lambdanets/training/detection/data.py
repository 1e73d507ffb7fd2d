"""Training and validation data of a detection recipe."""

import sys
from pathlib import Path

from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.coco.sets import open_digits, open_validation
from lambdanets.data.order import permutation
from lambdanets.errors import InputError
from lambdanets.records import write_json
from lambdanets.terminal import echo
from lambdanets.training.detection.recipe import DetectionRecipe

FINDINGS = "findings.json"


def open_sets(recipe: DetectionRecipe) -> tuple[AnnotatedImages, AnnotatedImages, str]:
    """Training data, validation data, and their source for messages.

    Raises InputError if their categories differ, if one has no object, or too few images.
    """
    if recipe.data == "digits":
        training, validation = open_digits()
        source = "scikit-learn's digits, scattered"
    else:
        assert recipe.images is not None
        training = open_annotated(Path(recipe.data), Path(recipe.images))
        validation = open_validation(recipe, training.annotations.categories)
        source = f"{recipe.data} and {recipe.validation_data}"
    if recipe.training_images is not None:
        if recipe.training_images > len(training):
            raise InputError(f"training_images must be at most {len(training)}, got {recipe.training_images}")
        subset = permutation(len(training), recipe.seed, 0)[: recipe.training_images]
        source = f"{source}, {len(subset)} of {len(training)} training images"
        training = training.selected(sorted(subset.tolist()))
    for name, images in (("data", training), ("validation_data", validation)):
        if all(each.crowd for image in images.annotations.images for each in image.objects):
            findings = "".join(f"; {line}" for line in images.findings.lines())
            raise InputError(f"{name} must have objects that are no crowds, and has none: {source}{findings}")
    return training, validation, source


def write_findings(folder: Path, **parts: AnnotatedImages) -> None:
    """Write findings.json, the ids of dropped annotations by split and kind; removed if there are none."""
    found = {part: images.findings.all_ids() for part, images in parts.items()}
    path = folder / FINDINGS
    if any(found.values()):
        write_json(path, found)
        echo(f"all dropped annotations: {path}", file=sys.stderr)
    else:
        path.unlink(missing_ok=True)
