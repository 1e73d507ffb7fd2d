"""What detectors and segmenters have in common: they are trained on annotations in COCO format."""

import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.batches import Batch, Batches
from lambdanets.data.coco.annotations import AnnotatedImage, AnnotatedImages, Category
from lambdanets.data.coco.images import image_to_tensor, open_annotated, without_target
from lambdanets.data.coco.scattered_digits import open_digits
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc
from lambdanets.inference.figures import SHEET, new_figure, save_figure
from lambdanets.inference.model_card import CocoCard
from lambdanets.inference.predictor import Evaluation, Predictor
from lambdanets.inference.tiles import is_tiled, predict_tiles
from lambdanets.records import TileSize, check
from lambdanets.terminal import echo

MAX_DRAWN = 8  # images in predictions.png


class CocoPredictor(Predictor):
    """Base of `Detector` and `Segmenter`."""

    command_options: ClassVar[Mapping[str, Any]] = {"figures": True, "tile_size": None}

    card: CocoCard
    images: AnnotatedImages

    @property
    def categories(self) -> tuple[Category, ...]:
        """Categories (id and name), in order of the labels."""
        return tuple(map(Category, self.card.category_ids, self.card.classes))

    def tile_side(self, tile_size: int | None = None) -> int:
        """Return the side of the tiles for an argument of `predict`, 0 for none."""
        check("tile_size", tile_size, TileSize | Literal[0] | None)
        return (getattr(self.card, "tile_size", None) if tile_size is None else tile_size) or 0

    def infer(
        self, images: Sequence[Image | Tensor], *, tile_size: int | None = None, batch_size: int = 1
    ) -> list[Any]:
        """Predict on images; those with a side of more than two tiles are divided. Arguments: see `predict`."""
        side, sizes = self.tile_side(tile_size), [tuple(transforms.get_size(image)) for image in images]
        whole = [image_to_tensor(image) for image, size in zip(images, sizes, strict=True) if not is_tiled(size, side)]
        predicted = iter(self.infer_tensors(whole) if whole else [])
        return [
            self.merge_tiles(predict_tiles(image, side, batch_size, self.infer_tensors), size)
            if is_tiled(size, side)
            else next(predicted)
            for image, size in zip(images, sizes, strict=True)
        ]

    @abstractmethod
    def infer_tensors(self, images: Sequence[Tensor]) -> list[Any]:
        """Predict on images, float32 (3, H, W) in [0, 1], without tiles."""

    @abstractmethod
    def merge_tiles(self, tiles: Iterator[tuple[slice, slice, Any]], size: tuple[int, int]) -> Any:
        """Return the prediction of an image (height, width) from those of overlapping tiles: rows, columns, each."""

    def evaluator(self, data: str | None = None, *, images: str | None = None) -> Self:
        """Return the evaluator on the validation data of the training, or on other data with the same categories.

        data: COCO instances file. images: folder or tar of its images, which are read as in the model card.
        """
        if (data is None) != (images is None):
            raise InputError("data and images must be given together, got one without the other")
        name, recipe = "validation", self.card.recipe
        if data is not None:
            name, recipe = "data", {"validation_data": data, "images": images}
        annotated = open_validation(recipe, self.categories)
        echo(*(f"{name}: {line}" for line in annotated.problems.lines()), file=sys.stderr)
        annotated = replace(annotated, stretch=self.card.stretch)
        return replace(self, images=annotated, left_out=annotated.problems.left_out)

    def batches(self, **options: Any) -> Batches:
        return Batches(self.images, without_target, **options)

    # images differ in size, and --compile would compile the model again for many sizes
    @torch.compiler.set_stance("force_eager")
    def measure(self, batch: Batch) -> list[Any]:
        """Return (index, *`compare`) of each image. All predictions of a batch are in memory."""
        found = zip(batch.indices.tolist(), self.infer(batch.images), strict=True)
        return [(index, *self.compare(prediction, self.images.images[index])) for index, prediction in found]

    @abstractmethod
    def compare(self, prediction: Any, annotated: AnnotatedImage) -> tuple[Any, ...]:
        """Return what `score` needs of an image, from its prediction and its annotations."""

    @torch.compiler.set_stance("force_eager")  # as in `measure`
    def draw(self, evaluation: Evaluation, folder: Path) -> None:
        """Draw evenly spaced images with their annotations, and with their predictions, in predictions.png."""
        indices = [index for index, *_ in evaluation.measures]
        positions = np.linspace(0, len(indices) - 1, min(len(indices), MAX_DRAWN)).astype(int)
        loaded = (self.images.load(indices[position]) for position in positions)
        rows = [self.render(*pair, *self.infer(pair[:1])) for pair in loaded]
        heights = [min(7 * truth.height / truth.width, 20) for truth, _ in rows]
        figure = new_figure(14, 0.5 + sum(heights))
        axes = figure.subplots(len(rows), 2, squeeze=False, height_ratios=heights)
        for axis, title in zip(axes[0], ("ground truth", "prediction"), strict=True):
            axis.set_title(title, fontsize=16)
        for axis, image in zip(axes.flat, (image for row in rows for image in row), strict=True):
            axis.imshow(np.asarray(image))
            axis.set_axis_off()
        save_figure(figure, folder / SHEET)

    @abstractmethod
    def render(self, image: Image, annotated: AnnotatedImage, prediction: Any) -> tuple[Image, Image]:
        """Return drawings of the annotations of an image, and of its prediction."""


def open_validation(recipe: Mapping[str, Any], categories: tuple[Category, ...]) -> AnnotatedImages:
    """Open the validation set of the fields of a `CocoRecipe`.

    Raises InputError if ids or names of its categories differ from `categories`, or if the recipe does not name it.
    """
    data, images = recipe.get("validation_data"), recipe.get("validation_images") or recipe.get("images")
    if "digits" in (recipe.get("data"), data):
        data, annotated = "digits", open_digits()[1]
    elif not data or not images:
        raise InputError("data and images must be given for a model that names no data, such as a file, got none")
    else:
        annotated = open_annotated(Path(data), Path(images), [category.id for category in categories])
    found = annotated.categories
    wanted, got = ([f"{nfc(each.name)!r} (id {each.id})" for each in several] for several in (categories, found))
    if got != wanted:
        unknown = next((name for name in got if name not in wanted), f"only {len(got)} of them")
        raise InputError(
            f"'{data}' must have the {len(wanted)} categories of training ({first_few(wanted)}), got {unknown}"
        )
    return annotated
