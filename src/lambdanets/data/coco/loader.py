"""Images and targets of batches. Their images are float32 (3, H, W) in [0, 1], of different sizes.

In training, a target is a dict: for detection of boxes (n, 4) as x1, y1, x2, y2, labels (n,) int64 from 1, and masks
(n, H, W) uint8, for segmentation of the semantic mask (H, W) uint8. In evaluation it is empty.
"""

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.segmentations import to_cropped_mask

Target = dict[str, Tensor]
BACKGROUND = 0
IGNORED = 255  # ignore_index of the loss; scores do not count these pixels either
SEMANTIC_MASK = "semantic_mask"  # key in the targets of a batch


def load_image(images: AnnotatedImages, index: int) -> tuple[Tensor, Target]:
    """Return an image, and an empty target."""
    return image_to_tensor(images.load(index)[0]), {}


def image_to_tensor(image: Image) -> Tensor:
    """Convert an image to a tensor, float32 (3, H, W) in [0, 1]."""
    return transforms.to_dtype(transforms.pil_to_tensor(image.convert("RGB")), torch.float32, scale=True)


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
