"""Augmentation of images, boxes and masks for detection."""

import random
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.loader import Target, image_to_tensor
from lambdanets.data.coco.segmentations import CroppedMask, to_cropped_mask
from lambdanets.tasks.detection.recipe import DetectionRecipe


def augment(image: Image, annotated: AnnotatedImage, recipe: DetectionRecipe) -> tuple[Tensor, Target]:
    """Apply scale jitter, a crop to at most image_size, and a horizontal flip to an image and its objects.

    The scale is a random factor from `jitter` times the scale at which the image fits into image_size. Crowds and
    objects outside the crop are dropped. If more than max_objects remain, a random subset is kept. The crop may cut
    an object; its box is then the box of the visible part of its mask. Uses Python's global random generator.
    """
    scale = random.uniform(*recipe.jitter) * recipe.image_size / max(image.size)
    (top, height, new_height), (left, width, new_width) = (
        _random_crop(side, scale, recipe.image_size) for side in image.size[::-1]
    )
    flipped = random.random() < recipe.flip

    objects = [instance for instance in annotated.objects if not instance.crowd]
    boxes_in_crop = torch.tensor([instance.box for instance in objects], dtype=torch.float32).reshape(-1, 4)
    boxes_in_crop = boxes_in_crop - torch.tensor([left, top, left, top])
    clipped: Any = tv_tensors.BoundingBoxes(boxes_in_crop, format="XYXY", canvas_size=(height, width))
    clipped = transforms.clamp_bounding_boxes(clipped)
    resized: Any = transforms.resize(clipped, [new_height, new_width])
    boxes = (transforms.horizontal_flip(resized) if flipped else resized).as_subclass(Tensor)
    visible = ((boxes[:, 2] - boxes[:, 0] >= 1) & (boxes[:, 3] - boxes[:, 1] >= 1)).nonzero().flatten().tolist()
    if len(visible) > recipe.max_objects:
        visible = random.sample(visible, len(visible))

    # one mask at a time: all masks at the size of a photograph would not fit into memory
    masks = torch.zeros(min(len(visible), recipe.max_objects), new_height, new_width, dtype=torch.uint8)
    kept: list[int] = []
    for index in visible:
        if len(kept) == recipe.max_objects:
            break
        patch = to_cropped_mask(objects[index].segmentation, annotated.height, annotated.width)
        # nearest, not nearest-exact: torchvision's roi_align of masks compensates for its shift by half a pixel
        cropped = tv_tensors.Mask(_crop_patch(patch, top, left, height, width))
        mask: Any = transforms.resize(cropped, [new_height, new_width])
        if mask.any():
            masks[len(kept)] = mask.flip(-1) if flipped else mask
            kept.append(index)
    is_cut = (boxes_in_crop != clipped.as_subclass(Tensor)).any(1)[kept]
    masks, boxes = masks[: len(kept)], boxes[kept]
    boxes[is_cut] = masks_to_boxes(masks[is_cut]) + torch.tensor([0.0, 0.0, 1.0, 1.0])  # include the last pixel
    crop = image_to_tensor(image.convert("RGB").crop((left, top, left + width, top + height)))
    crop = transforms.resize(crop, [new_height, new_width], antialias=True)
    labels = torch.tensor([objects[index].category + 1 for index in kept], dtype=torch.int64)
    target = {"boxes": boxes, "labels": labels, "masks": masks}
    return transforms.horizontal_flip(crop) if flipped else crop, target


def _crop_patch(patch: CroppedMask, top: int, left: int, height: int, width: int) -> Tensor:
    """Return the mask of an object in a crop of the image, uint8 (height, width)."""
    mask = np.zeros((height, width), np.uint8)
    # the first row and column of the overlap, in the patch and in the crop
    patch_row, patch_column = max(0, top - patch.top), max(0, left - patch.left)
    row, column = max(0, patch.top - top), max(0, patch.left - left)
    target = mask[row:, column:]
    overlap = patch.mask[patch_row:, patch_column:][: target.shape[0], : target.shape[1]]
    target[: overlap.shape[0], : overlap.shape[1]] = overlap
    return torch.from_numpy(mask)


def _random_crop(side: int, scale: float, max_size: int) -> tuple[int, int, int]:
    """Choose a random crop along one side of an image; return its start, its length, and its length after resizing."""
    resized = max(1, round(side * scale))
    if resized <= max_size:
        return 0, side, resized
    length = min(side, max(1, round(max_size / scale)))
    return random.randint(0, side - length), length, max_size
