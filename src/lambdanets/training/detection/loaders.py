"""From annotated images to the batches that a detector learns from."""

import random
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.batches import Batches
from lambdanets.data.coco.annotations import AnnotatedImage, decode_cropped_mask
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import DetectionBatch, Target, as_tensor, collate
from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.data.order import BatchSlice
from lambdanets.training.detection.recipe import DetectionRecipe


def training_batches(
    recipe: DetectionRecipe, images: AnnotatedImages, batch_slice: BatchSlice
) -> Batches[DetectionBatch]:
    """The recipe's batches of images, shuffled, scaled and cropped; batch_slice: this rank's part of a step."""
    return Batches(
        images,
        _Prepared(recipe),
        collate,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        training=True,
        workers=recipe.workers,
        batch_slice=batch_slice,
    )


class _Prepared:
    """Loads and augments an image. A class, so that workers of any start method can have it."""

    def __init__(self, recipe: DetectionRecipe) -> None:
        self._recipe = recipe

    def __call__(self, images: AnnotatedImages, number: int) -> tuple[Tensor, Target]:
        return for_training(*images.load(number), self._recipe)


def for_training(image: Image, known: AnnotatedImage, recipe: DetectionRecipe) -> tuple[Tensor, Target]:
    """An image and its objects at a random scale, flipped or not, cropped to image_size; it may come out smaller.

    The scale is jitter's times that at which the image fits into image_size. Crowds are left out, as are objects of
    which nothing is left; of more than max_objects that are left, so many are drawn. The box of an object that the crop
    cuts is that of what is left of its mask. Draws from Python's random numbers.
    """
    scale = random.uniform(*recipe.jitter) * recipe.image_size / max(image.size)
    (top, height, rows), (left, width, columns) = (_cut(side, scale, recipe.image_size) for side in image.size[::-1])
    flipped = random.random() < recipe.flip

    objects = [each for each in known.objects if not each.crowd]
    whole = torch.tensor([each.box for each in objects], dtype=torch.float32).reshape(-1, 4)
    whole = whole - torch.tensor([left, top, left, top])
    clipped: Any = tv_tensors.BoundingBoxes(whole, format="XYXY", canvas_size=(height, width))
    clipped = transforms.clamp_bounding_boxes(clipped)
    resized: Any = transforms.resize(clipped, [rows, columns])
    boxes = (transforms.horizontal_flip(resized) if flipped else resized).as_subclass(Tensor)
    left_over = ((boxes[:, 2] - boxes[:, 0] >= 1) & (boxes[:, 3] - boxes[:, 1] >= 1)).nonzero().flatten().tolist()
    if len(left_over) > recipe.max_objects:
        left_over = random.sample(left_over, len(left_over))

    # one at a time: at the size of a photograph they would not fit into memory
    masks = torch.zeros(min(len(left_over), recipe.max_objects), rows, columns, dtype=torch.uint8)
    there: list[int] = []
    for number in left_over:
        if len(there) == recipe.max_objects:
            break
        patch = decode_cropped_mask(objects[number], known.height, known.width)
        # nearest, not nearest-exact: half a pixel right and down, which torchvision's roi_align of masks takes back
        mask: Any = transforms.resize(tv_tensors.Mask(_within(patch, top, left, height, width)), [rows, columns])
        if mask.any():
            masks[len(there)] = mask.flip(-1) if flipped else mask
            there.append(number)
    of_cut = (whole != clipped.as_subclass(Tensor)).any(1)[there]
    masks, boxes = masks[: len(there)], boxes[there]
    boxes[of_cut] = masks_to_boxes(masks[of_cut]) + torch.tensor([0.0, 0.0, 1.0, 1.0])  # from the last pixel to its end
    cut = as_tensor(image.convert("RGB").crop((left, top, left + width, top + height)))
    cut = transforms.resize(cut, [rows, columns], antialias=True)
    labels = torch.tensor([objects[number].category + 1 for number in there], dtype=torch.int64)
    target = {"boxes": boxes, "labels": labels, "masks": masks}
    return transforms.horizontal_flip(cut) if flipped else cut, target


def _within(patch: CroppedMask, top: int, left: int, height: int, width: int) -> Tensor:
    """The part of a mask that lies within a crop, uint8 (height, width)."""
    mask = np.zeros((height, width), np.uint8)
    above, before = max(0, top - patch.top), max(0, left - patch.left)  # of the patch, outside the crop
    below, behind = max(0, patch.top - top), max(0, patch.left - left)  # of the crop, outside the patch
    place = mask[below:, behind:]
    part = patch.mask[above:, before:][: place.shape[0], : place.shape[1]]
    place[: part.shape[0], : part.shape[1]] = part
    return torch.from_numpy(mask)


def _cut(side: int, scale: float, most: int) -> tuple[int, int, int]:
    """Of a side: where a crop begins, how long it is, and how long it becomes at the scale."""
    whole = max(1, round(side * scale))
    if whole <= most:
        return 0, side, whole
    length = min(side, max(1, round(most / scale)))
    return random.randint(0, side - length), length, most
