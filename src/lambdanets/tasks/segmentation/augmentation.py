"""Augmentation of images and semantic masks for segmentation."""

import random

import torch
import torch.nn.functional as F
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.loader import IGNORED, SEMANTIC_MASK, Target, image_to_tensor, make_semantic_mask
from lambdanets.data.transforms import normalize
from lambdanets.tasks.segmentation.recipe import SegmentationRecipe


def augment(image: Image, annotated: AnnotatedImage, recipe: SegmentationRecipe) -> tuple[Tensor, Target]:
    """Return a random crop of a scaled image, normalized, (3, S, S) with S = image_size, and its semantic mask (S, S).

    The scale is a random factor from `jitter`. The crop has a random position; if the scaled image is smaller than S,
    the rest of the crop is 0 in the image and IGNORED in the semantic mask. Then the crop is flipped and rotated. Uses
    Python's global random generator.
    """
    scale, size = random.uniform(*recipe.jitter), recipe.image_size
    (top, height, new_height), (left, width, new_width) = (_random_crop(side, scale, size) for side in image.size[::-1])
    crop = image_to_tensor(image.convert("RGB").crop((left, top, left + width, top + height)))
    semantic_mask = torch.from_numpy(make_semantic_mask(annotated)[None, top : top + height, left : left + width])
    if (new_height, new_width) != (height, width):
        crop = transforms.resize(crop, [new_height, new_width], antialias=True)
        semantic_mask = transforms.resize(
            semantic_mask, [new_height, new_width], interpolation=InterpolationMode.NEAREST_EXACT
        )
    crop = normalize(crop, recipe.mean, recipe.std)
    pad_top, pad_left = random.randint(0, size - new_height), random.randint(0, size - new_width)
    padding = (pad_left, size - new_width - pad_left, pad_top, size - new_height - pad_top)
    crop, semantic_mask = F.pad(crop, padding), F.pad(semantic_mask, padding, value=IGNORED)
    if random.random() < recipe.flip:
        crop, semantic_mask = crop.flip(-1), semantic_mask.flip(-1)
    if recipe.rotate:
        turns = random.randrange(4)
        crop, semantic_mask = (torch.rot90(tensor, turns, (-2, -1)) for tensor in (crop, semantic_mask))
    return crop.contiguous(), {SEMANTIC_MASK: semantic_mask[0].contiguous()}


def _random_crop(side: int, scale: float, size: int) -> tuple[int, int, int]:
    """Choose a random crop along one side of an image; return its start, its length, and its length after scaling."""
    length = min(side, max(1, round(size / scale)))
    return random.randint(0, side - length), length, min(size, max(1, round(length * scale)))
