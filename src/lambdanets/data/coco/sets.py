"""Opens the annotated sets of a recipe: COCO files, or the synthetic scattered digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.coco.scattered_digits import open_digits
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc


def open_validation(recipe: Mapping[str, Any], categories: tuple[Category, ...]) -> AnnotatedImages:
    """Open the validation set of the fields of a `CocoRecipe`.

    Raises InputError if its categories differ from `categories`, or if the recipe does not name it.
    """
    if recipe.get("data") == "digits":
        return open_with_categories("digits", "digits", categories)
    data, images = recipe.get("validation_data"), recipe.get("validation_images") or recipe.get("images")
    if data is None or images is None:
        raise InputError("data and images must be given for a model that names no data, such as a file, got none")
    return open_with_categories(data, images, categories)


def open_with_categories(data: str, images: str, categories: tuple[Category, ...]) -> AnnotatedImages:
    """Open an annotated set. Raises InputError if ids or names of its categories differ from `categories`."""
    annotated = open_digits()[1] if data == "digits" else open_annotated(Path(data), Path(images))
    found = annotated.annotations.categories
    wanted, got = ([f"{nfc(each.name)!r} (id {each.id})" for each in several] for several in (categories, found))
    if got != wanted:
        unknown = next((name for name in got if name not in wanted), f"only {len(got)} of them")
        raise InputError(
            f"'{data}' must have the {len(wanted)} categories of training ({first_few(wanted)}), got {unknown}"
        )
    return annotated
