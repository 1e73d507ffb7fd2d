"""Opens the annotated set on which a trained model is evaluated."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.sets import DataLocations, open_validation, open_with_categories
from lambdanets.errors import InputError


class Card(DataLocations, Protocol):
    """The parts of a model card that the evaluation needs."""

    @property
    def stretch(self) -> bool: ...


class TrainedOnAnnotations(Protocol):
    """A model that was trained on COCO-format annotations, such as a `Detector` or a `Segmenter`."""

    @property
    def card(self) -> Card: ...
    @property
    def categories(self) -> tuple[Category, ...]: ...


def open_evaluation_set(
    model: TrainedOnAnnotations, data: str | os.PathLike[str] | None, images: str | os.PathLike[str] | None
) -> AnnotatedImages:
    """Open the validation data with which the model was trained, or other data with the same categories.

    Images are read as in the model card.

    data: COCO instances file, or None for the validation data.
    images: folder or tar of the images of `data`.
    """
    if (data is None) != (images is None):
        raise InputError("data and images must be given together, got one without the other")
    if data is None or images is None:
        if model.card.data != "digits" and None in (model.card.images, model.card.validation_data):
            raise InputError("data and images must be given for a model that names no data, such as a file, got none")
        annotated = open_validation(model.card, model.categories)
    else:
        annotated = open_with_categories(Path(data), Path(images), model.categories)
    return replace(annotated, stretch=model.card.stretch)
