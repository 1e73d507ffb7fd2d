"""Batches of annotated images, and semantic masks, which are targets of semantic segmentation."""

from typing import NamedTuple

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.batches import Batches, BatchSlice, Load, Sample
from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.segmentations import to_cropped_mask

Target = dict[str, Tensor]
BACKGROUND = 0
IGNORED = 255  # ignore_index of the loss; scores do not count these pixels either
MAX_CATEGORIES = IGNORED - 1
SEMANTIC_MASK = "semantic_mask"  # key in the targets of a batch


class AnnotatedBatch(NamedTuple):
    """A batch of b annotated images.

    images: float32 (3, H, W) in [0, 1], of different sizes.
    targets: one dict per image. For detection, in training, it has boxes (n, 4) as x1, y1, x2, y2, labels (n,) int64
        from 1, and masks (n, H, W) uint8, and otherwise it is empty. For segmentation, it has the semantic mask (H, W)
        uint8 (see `make_semantic_mask`).
    indices: (b,) int64, of the images in the set.
    unreadable: "name: reason" of each image that could not be read. These images are not in the batch.
    step_images: number of images in the whole step, over all ranks and micro-batches.
    """

    images: list[Tensor]
    targets: list[Target]
    indices: Tensor
    unreadable: list[str]
    step_images: int


def load_image(images: AnnotatedImages, index: int) -> tuple[Tensor, Target]:
    """Return an image, and an empty target."""
    return image_to_tensor(images.load(index)[0]), {}


def evaluation_batches(
    images: AnnotatedImages,
    batch_size: int,
    workers: int = 0,
    batch_slice: BatchSlice | None = None,
    load: Load = load_image,
) -> Batches[AnnotatedBatch]:
    """Return batches of images in order of the indices, without resizing.

    load: load(images, index) returns an image and its target, by default an empty one.
    """
    return Batches(
        images,
        load,
        collate,
        batch_size=batch_size,
        seed=0,
        training=False,
        workers=workers,
        batch_slice=batch_slice,
    )


def image_to_tensor(image: Image) -> Tensor:
    """Convert an image to a tensor, float32 (3, H, W) in [0, 1]."""
    return transforms.to_dtype(transforms.pil_to_tensor(image.convert("RGB")), torch.float32, scale=True)


def collate(samples: list[Sample]) -> AnnotatedBatch:
    """Make a batch from samples with the content (image, target)."""
    readable = [sample for sample in samples if sample.content is not None]
    return AnnotatedBatch(
        images=[sample.content[0] for sample in readable],
        targets=[sample.content[1] for sample in readable],
        indices=torch.tensor([sample.image_index for sample in readable], dtype=torch.int64),
        unreadable=[sample.unreadable for sample in samples if sample.content is None],
        step_images=samples[0].step_images,
    )


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
