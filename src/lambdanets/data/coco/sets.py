"""Opens annotated sets: COCO files, or the synthetic scattered digits."""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from lambdanets.data.coco.annotations import Category, parse_annotations
from lambdanets.data.coco.images import AnnotatedImages, InMemoryFiles, open_annotated
from lambdanets.data.coco.scattered_digits import scattered_digits
from lambdanets.data.image_search import first_few
from lambdanets.errors import InputError
from lambdanets.files import nfc
from lambdanets.terminal import echo

NUM_TRAINING_IMAGES, NUM_VALIDATION_IMAGES = 300, 60  # of the scattered digits


class DataLocations(Protocol):
    """The paths of the annotations (data) and images for training and validation.

    If data is "digits", the set is the scattered digits, and the other paths are not used.
    """

    @property
    def data(self) -> str: ...
    @property
    def images(self) -> str | None: ...
    @property
    def validation_data(self) -> str | None: ...
    @property
    def validation_images(self) -> str | None: ...


def open_validation(locations: DataLocations, categories: tuple[Category, ...]) -> AnnotatedImages:
    """Open the validation set. Raises InputError if its categories differ from `categories`."""
    if locations.data == "digits":
        validation = open_digits()[1]
        check_categories(validation.annotations.categories, categories, locations.data)
        return validation
    assert locations.images is not None
    assert locations.validation_data is not None
    images = Path(locations.validation_images or locations.images)
    return open_with_categories(Path(locations.validation_data), images, categories)


def open_with_categories(data: Path, images: Path, categories: tuple[Category, ...]) -> AnnotatedImages:
    """Open an annotated set. Raises InputError if its categories differ from `categories`."""
    annotated = open_annotated(data, images)
    check_categories(annotated.annotations.categories, categories, str(data))
    return annotated


def check_categories(categories: tuple[Category, ...], expected: tuple[Category, ...], source: str) -> None:
    """Raise InputError if the ids or names of the categories differ from the expected ones."""
    wanted, got = ([(each.id, nfc(each.name)) for each in several] for several in (expected, categories))
    if got != wanted:
        names, other = ([f"{name!r} (id {number})" for number, name in pairs] for pairs in (wanted, got))
        unknown = next((name for name in other if name not in names), f"only {len(got)} of them")
        raise InputError(
            f"'{source}' must have the {len(wanted)} categories of training ({first_few(names)}), got {unknown}"
        )


def report_problems(**sets: AnnotatedImages) -> None:
    """Print the annotations and images that were dropped or repaired on stderr. sets: annotated sets by name."""
    for name, images in sets.items():
        for line in images.problems.lines():
            echo(f"{name}: {line}", file=sys.stderr)


@lru_cache(maxsize=1)
def open_digits() -> tuple[AnnotatedImages, AnnotatedImages]:
    """Return the training and validation sets of scattered digits."""
    splits = scattered_digits(NUM_TRAINING_IMAGES, NUM_VALIDATION_IMAGES, 0)
    training, validation = (_in_memory(split, *splits[split]) for split in ("train", "val"))
    return training, validation


def _in_memory(split: str, content: bytes, files: dict[str, bytes]) -> AnnotatedImages:
    annotations = parse_annotations(content, Path("digits"))
    names = [image.name for image in annotations.images]
    return AnnotatedImages(annotations, InMemoryFiles(files, names, f"digits/{split}"), range(len(names)))
