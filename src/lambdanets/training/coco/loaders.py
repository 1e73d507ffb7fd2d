"""Training batches of annotated images, with the augmentation of a task."""

from collections.abc import Callable
from functools import partial
from typing import Any

from PIL.Image import Image
from torch import Tensor

from lambdanets.data.batches import Batches
from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import AnnotatedBatch, Target, collate
from lambdanets.data.order import BatchSlice

Augment = Callable[[Image, AnnotatedImage, Any], tuple[Tensor, Target]]


def augmented_batches(
    recipe: Any, images: AnnotatedImages, batch_slice: BatchSlice, augment: Augment
) -> Batches[AnnotatedBatch]:
    """Return the recipe's training batches, shuffled and augmented.

    batch_slice: the images of each global batch that this rank loads, and its accumulation steps.
    augment: maps an image, its annotations and the recipe to a tensor and its target; a module-level function, because
        spawned workers must unpickle it.
    """
    return Batches(
        images,
        partial(_load, augment=augment, recipe=recipe),
        collate,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        training=True,
        workers=recipe.workers,
        batch_slice=batch_slice,
    )


def _load(images: AnnotatedImages, index: int, *, augment: Augment, recipe: Any) -> tuple[Tensor, Target]:
    return augment(*images.load(index), recipe)
