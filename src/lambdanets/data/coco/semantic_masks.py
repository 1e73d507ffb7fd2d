"""Semantic masks of annotated images: the class of each pixel, as targets of semantic segmentation."""

import numpy as np
import torch
from torch import Tensor

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import Target, image_to_tensor
from lambdanets.data.coco.segmentations import to_cropped_mask

BACKGROUND = 0
IGNORED = 255  # ignore_index of the loss; scores do not count these pixels either
MAX_CATEGORIES = IGNORED - 1
SEMANTIC_MASK = "semantic_mask"  # key in the targets of a batch


def make_semantic_mask(annotated: AnnotatedImage) -> np.ndarray:
    """Return the class of each pixel, uint8 (H, W): 0 for background, i + 1 for category i, or IGNORED.

    Where objects overlap, a pixel belongs to the object with the smallest annotated area or, if areas are equal, to the
    last one in the file. Pixels of crowd regions are IGNORED, except where an object covers them.
    """
    classes = np.full((annotated.height, annotated.width), BACKGROUND, np.uint8)
    for obj in sorted(annotated.objects, key=lambda obj: (not obj.crowd, -obj.area)):
        top, left, mask = to_cropped_mask(obj.segmentation, annotated.height, annotated.width)
        window = classes[top : top + mask.shape[0], left : left + mask.shape[1]]
        window[mask] = IGNORED if obj.crowd else obj.category + 1
    return classes


def load_with_semantic_mask(images: AnnotatedImages, index: int) -> tuple[Tensor, Target]:
    """Load an image, float32 (3, H, W) in [0, 1], and its semantic mask."""
    image, annotated = images.load(index)
    return image_to_tensor(image), {SEMANTIC_MASK: torch.from_numpy(make_semantic_mask(annotated))}
