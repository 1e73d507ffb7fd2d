"""Opens annotated sets: COCO files, or the scattered digits, which need none."""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from lambdanets.data.coco.annotations import Category, parse_annotations
from lambdanets.data.coco.images import AnnotatedImages, InMemoryFiles, open_annotated
from lambdanets.data.coco.scattered_digits import scattered_digits
from lambdanets.errors import InputError
from lambdanets.terminal import echo

DIGITS_TRAINING, DIGITS_VALIDATION = 300, 60


class DataLocations(Protocol):
    """The paths of annotations (data) and images for training and validation; data "digits": scattered digits."""

    @property
    def data(self) -> str: ...
    @property
    def images(self) -> str | None: ...
    @property
    def validation_data(self) -> str | None: ...
    @property
    def validation_images(self) -> str | None: ...


def open_validation(locations: DataLocations, categories: tuple[Category, ...]) -> AnnotatedImages:
    """The validation set. Raises InputError unless it has these categories."""
    if locations.data == "digits":
        validation = digits()[1]
        check_categories(validation.annotations.categories, categories, locations.data)
        return validation
    assert locations.images is not None
    assert locations.validation_data is not None
    images = Path(locations.validation_images or locations.images)
    return open_with_categories(Path(locations.validation_data), images, categories)


def open_with_categories(data: Path, images: Path, categories: tuple[Category, ...]) -> AnnotatedImages:
    """An annotated set. Raises InputError unless it has these categories."""
    annotated = open_annotated(data, images)
    check_categories(annotated.annotations.categories, categories, str(data))
    return annotated


def check_categories(categories: tuple[Category, ...], expected: tuple[Category, ...], source: str) -> None:
    """Raise InputError unless the categories have the expected ids and names."""
    if categories == expected:
        return
    unknown = next((category for category in categories if category not in expected), None)
    got = f"{unknown.name!r} (id {unknown.id})" if unknown else f"only {len(categories)} of them"
    names = ", ".join(f"{category.name!r} (id {category.id})" for category in expected[:5])
    raise InputError(
        f"'{source}' must have the {len(expected)} categories of training ({names}{', ...' if expected[5:] else ''}), "
        f"got {got}"
    )


def report_findings(**sets: AnnotatedImages) -> None:
    """Print on stderr what was dropped from each set; the keywords are the sets' names."""
    for name, images in sets.items():
        for line in images.findings.lines():
            echo(f"{name}: {line}", file=sys.stderr)


@lru_cache(maxsize=1)
def digits() -> tuple[AnnotatedImages, AnnotatedImages]:
    """The training and validation sets of scattered digits."""
    splits = scattered_digits(DIGITS_TRAINING, DIGITS_VALIDATION, 0)
    training, validation = (_in_memory(split, *splits[split]) for split in ("train", "val"))
    return training, validation


def _in_memory(split: str, content: bytes, files: dict[str, bytes]) -> AnnotatedImages:
    annotations = parse_annotations(content, Path("digits"))
    names = [image.name for image in annotations.images]
    return AnnotatedImages(annotations, InMemoryFiles(files, names, f"digits/{split}"), range(len(names)))
