"""The sets that a recipe of detection trains and validates on."""

import json
import sys
from pathlib import Path

from lambdanets.data.coco.annotations import Category, parse_annotations
from lambdanets.data.coco.images import AnnotatedImages, FilesInMemory, open_annotated
from lambdanets.data.coco.scattered_digits import scattered_digits
from lambdanets.data.order import permuted
from lambdanets.errors import InputError
from lambdanets.files import write_whole
from lambdanets.terminal import say
from lambdanets.training.detection.evaluation import check_categories
from lambdanets.training.detection.recipe import DetectionRecipe

FINDINGS = "findings.json"
DIGITS_TRAINING, DIGITS_VALIDATION = 300, 60


def open_sets(recipe: DetectionRecipe) -> tuple[AnnotatedImages, AnnotatedImages, str]:
    """The recipe's images to train on and to validate on, and where they came from.

    Raises InputError for sets that differ in their categories, that have no object, or too few images.
    """
    if recipe.data == "digits":
        training, validation = _scattered_digits()
        source = "scikit-learn's digits, scattered"
    else:
        assert recipe.images is not None
        training = open_annotated(Path(recipe.data), Path(recipe.images))
        validation = open_validation(recipe, training.annotations.categories)
        source = f"{recipe.data} and {recipe.validation_data}"
    if recipe.training_images is not None:
        if recipe.training_images > len(training):
            raise InputError(f"training_images must be at most {len(training)}, got {recipe.training_images}")
        drawn = permuted(len(training), recipe.seed, 0)[: recipe.training_images]
        source = f"{source}, {len(drawn)} of {len(training)} training images"
        training = training.selected(sorted(drawn.tolist()))
    for name, images in (("data", training), ("validation_data", validation)):
        if all(each.crowd for image in images.annotations.images for each in image.objects):
            why = "".join(f"; {line}" for line in images.findings.lines())
            raise InputError(f"{name} must have objects that are no crowds, and has none: {source}{why}")
    return training, validation, source


def open_validation(recipe: DetectionRecipe, categories: tuple[Category, ...]) -> AnnotatedImages:
    """The recipe's images to validate on, without those to train on. Raises InputError for other categories."""
    if recipe.data == "digits":
        validation = _scattered_digits()[1]
    else:
        assert recipe.images is not None
        assert recipe.validation_data is not None
        validation = open_annotated(Path(recipe.validation_data), Path(recipe.validation_images or recipe.images))
    check_categories(validation.annotations.categories, categories, recipe.validation_data or recipe.data)
    return validation


def tell_findings(**parts: AnnotatedImages) -> None:
    """Say on stderr what of the annotations was left out of each part."""
    for part, images in parts.items():
        for line in images.findings.lines():
            say(f"{part}: {line}", file=sys.stderr)


def write_findings(folder: Path, **parts: AnnotatedImages) -> None:
    """Write findings.json, all ids by part and kind, and say so on stderr; none is left where nothing was found."""
    found = {part: images.findings.all_ids() for part, images in parts.items()}
    path = folder / FINDINGS
    if any(found.values()):
        write_whole(path, (json.dumps(found, indent=1) + "\n").encode())
        say(f"all of them: {path}", file=sys.stderr)
    else:
        path.unlink(missing_ok=True)


def _scattered_digits() -> tuple[AnnotatedImages, AnnotatedImages]:
    parts = scattered_digits(DIGITS_TRAINING, DIGITS_VALIDATION, 0)
    training, validation = (_in_memory(part, *parts[part]) for part in ("train", "val"))
    return training, validation


def _in_memory(part: str, content: bytes, files: dict[str, bytes]) -> AnnotatedImages:
    annotations = parse_annotations(content, Path("digits"))
    names = [image.name for image in annotations.images]
    return AnnotatedImages(annotations, FilesInMemory(files, names, f"digits/{part}"), range(len(names)))
