"""What detectors and segmenters have in common: they are trained on annotations in COCO format."""

import sys
from dataclasses import replace
from typing import Any, ClassVar

from lambdanets.data.batches import Batches
from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import load_image
from lambdanets.data.coco.sets import open_validation, open_with_categories
from lambdanets.data.order import BatchSlice
from lambdanets.errors import InputError
from lambdanets.inference.evaluator import Evaluator
from lambdanets.inference.model_card import CocoCard
from lambdanets.inference.options import MaskOptions
from lambdanets.inference.predictor import Predictor
from lambdanets.terminal import echo


class CocoEvaluator(Evaluator):
    """Base of the evaluators of `Detector` and `Segmenter`. load: of an image and its target, as in `Batches`."""

    images: AnnotatedImages
    load = staticmethod(load_image)

    def batches(self, batch_size: int, workers: int = 0, batch_slice: BatchSlice | None = None) -> Batches:
        return Batches(self.images, self.load, batch_size=batch_size, workers=workers, batch_slice=batch_slice)


class CocoPredictor(Predictor):
    """Base of `Detector` and `Segmenter`."""

    evaluator_type: ClassVar[type[Evaluator]]

    card: CocoCard

    @property
    def categories(self) -> tuple[Category, ...]:
        """Categories (id and name), in order of the labels."""
        return tuple(map(Category, self.card.category_ids, self.card.classes))

    def infer_options(self, options: MaskOptions) -> dict[str, Any]:
        default = getattr(self.card, "tile_size", None)
        return {"tile_size": default if options.tile_size is None else options.tile_size or None}

    def open_images(self, data: str | None = None, images: str | None = None) -> AnnotatedImages:
        """Open the validation data with which the model was trained, or other data with the same categories.

        data: COCO instances file, or None for the validation data. images: folder or tar of the images of `data`.

        Images are read as in the model card.
        """
        if (data is None) != (images is None):
            raise InputError("data and images must be given together, got one without the other")
        if data is None or images is None:
            annotated = open_validation(self.card.recipe, self.categories)
        else:
            annotated = open_with_categories(data, images, self.categories)
        return replace(annotated, stretch=self.card.stretch)

    def evaluator(self, data: str | None = None, *, images: str | None = None) -> Evaluator:
        annotated = self.open_images(data, images)
        name = "validation" if data is None else "data"
        echo(*(f"{name}: {line}" for line in annotated.problems.lines()), file=sys.stderr)
        return self.evaluator_type(self, annotated, left_out=annotated.problems.left_out)
