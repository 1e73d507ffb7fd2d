"""Sets of annotated images by name: COCO's files, or scattered digits that need none."""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from lambdanets.data.coco.annotations import Category, parse_annotations
from lambdanets.data.coco.images import AnnotatedImages, InMemoryFiles, open_annotated
from lambdanets.data.coco.scattered_digits import scattered_digits
from lambdanets.errors import InputError
from lambdanets.terminal import say

DIGITS_TRAINING, DIGITS_VALIDATION = 300, 60


class Source(Protocol):
    """Where training and validation sets lie; data "digits": scattered digits."""

    @property
    def data(self) -> str: ...
    @property
    def images(self) -> str | None: ...
    @property
    def validation_data(self) -> str | None: ...
    @property
    def validation_images(self) -> str | None: ...


def open_validation(source: Source, categories: tuple[Category, ...]) -> AnnotatedImages:
    """The validation set. Raises InputError for other categories."""
    if source.data == "digits":
        validation = digits()[1]
        check_categories(validation.annotations.categories, categories, source.data)
        return validation
    assert source.images is not None
    assert source.validation_data is not None
    images = Path(source.validation_images or source.images)
    return open_with_categories(Path(source.validation_data), images, categories)


def open_with_categories(data: Path, images: Path, categories: tuple[Category, ...]) -> AnnotatedImages:
    """A set annotated with these categories. Raises InputError for other ones."""
    opened = open_annotated(data, images)
    check_categories(opened.annotations.categories, categories, str(data))
    return opened


def check_categories(came: tuple[Category, ...], known: tuple[Category, ...], source: str) -> None:
    """Raise InputError unless the categories are those that are known, ids and names."""
    if came == known:
        return
    other = next((category for category in came if category not in known), None)
    fault = f"{other.name!r} (id {other.id})" if other else f"only {len(came)} of them"
    some = ", ".join(f"{category.name!r} (id {category.id})" for category in known[:5])
    raise InputError(
        f"expected in '{source}' the {len(known)} categories that are known ({some}{', ...' if known[5:] else ''}), "
        f"but came {fault}"
    )


def report_findings(**parts: AnnotatedImages) -> None:
    """Say on stderr what of the annotations was left out of each part."""
    for part, images in parts.items():
        for line in images.findings.lines():
            say(f"{part}: {line}", file=sys.stderr)


@lru_cache(maxsize=1)
def digits() -> tuple[AnnotatedImages, AnnotatedImages]:
    """Scattered digits to train on and to validate on."""
    parts = scattered_digits(DIGITS_TRAINING, DIGITS_VALIDATION, 0)
    training, validation = (_in_memory(part, *parts[part]) for part in ("train", "val"))
    return training, validation


def _in_memory(part: str, content: bytes, files: dict[str, bytes]) -> AnnotatedImages:
    annotations = parse_annotations(content, Path("digits"))
    names = [image.name for image in annotations.images]
    return AnnotatedImages(annotations, InMemoryFiles(files, names, f"digits/{part}"), range(len(names)))
