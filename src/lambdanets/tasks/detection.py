"""The detection task: data, augmentation, model and losses."""

import random
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL.Image import Image
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes, remove_small_boxes
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.batches import Batch, Batches
from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import Target, image_to_tensor
from lambdanets.data.coco.segmentations import masks_api
from lambdanets.data.images import first_readable
from lambdanets.inference.coco_scores import METRICS
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.tasks.coco import CocoTask
from lambdanets.tasks.recipes import DetectionRecipe

# Names of the losses in torchvision, and in metrics.csv.
LOSS_NAMES = {
    "loss_classifier": "class_loss",
    "loss_box_reg": "box_loss",
    "loss_mask": "mask_loss",
    "loss_objectness": "objectness_loss",
    "loss_rpn_box_reg": "proposal_loss",
}


def augment(image: Image, annotated: AnnotatedImage, recipe: DetectionRecipe) -> tuple[Tensor, Target]:
    """Apply scale jitter, a crop to at most image_size, and a horizontal flip to an image and its objects.

    Crowds and objects outside the crop are dropped. If more than max_objects remain, a random subset is kept. The crop
    may cut an object; its box is then that of the visible part of its mask. Uses Python's global random generator.
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
    visible = remove_small_boxes(boxes, min_size=1).tolist()
    if len(visible) > recipe.max_objects:
        visible = random.sample(visible, len(visible))

    # one mask at a time: all masks at the size of a photograph would not fit into memory
    masks = torch.zeros(min(len(visible), recipe.max_objects), new_height, new_width, dtype=torch.uint8)
    kept: list[int] = []
    for index in visible:
        if len(kept) == recipe.max_objects:
            break
        size = [annotated.height, annotated.width]
        whole = masks_api().decode({"size": size, "counts": objects[index].segmentation})
        # nearest, not nearest-exact: torchvision's roi_align of masks compensates for its shift by half a pixel
        cropped = tv_tensors.Mask(torch.from_numpy(whole[top : top + height, left : left + width]))
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


def _random_crop(side: int, scale: float, max_size: int) -> tuple[int, int, int]:
    """Choose a random crop along one side of an image; return its start, its length, and its length after resizing.

    An image that fits is whole; in segmentation, whose crops start from the image's own resolution, rounding differs.
    """
    resized = max(1, round(side * scale))
    if resized <= max_size:
        return 0, side, resized
    length = min(side, max(1, round(max_size / scale)))
    return random.randint(0, side - length), length, max_size


class DetectionTask(CocoTask):
    """Object detection and instance segmentation."""

    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss", *LOSS_NAMES.values())
    VALIDATION_METRICS: ClassVar[tuple[str, ...]] = tuple(METRICS)
    BEST_METRIC: ClassVar[str] = "segm_AP"

    recipe: DetectionRecipe
    model: MaskRCNN

    def batches(self, **options: Any) -> Batches:
        return Batches(self.training, partial(augment, recipe=self.recipe), **options)

    def largest_example(self, batches: Batches) -> tuple[Tensor, Target]:
        """Return the image with the most objects, as large as others can make it by padding.

        Objects are repeated, so that the mask head gets as many positive regions as in later epochs.
        """
        images = self.training.images
        indices = sorted(range(len(images)), key=lambda index: -len(images[index].objects))
        image, target = first_readable(batches.load, indices, "training", self.recipe.max_unreadable)
        size = max(self.recipe.image_size, *image.shape[1:])
        padding = (0, size - image.shape[2], 0, size - image.shape[1])
        count = len(target["labels"])
        chosen = torch.arange(max(count, self.recipe.sampled_regions // 4) if count else 0) % max(count, 1)
        repeated = {name: value[chosen] for name, value in target.items()}
        return F.pad(image, padding), repeated | {"masks": F.pad(repeated["masks"], padding)}

    def num_images(self, batch: Batch) -> int:
        """Return the number of readable images in a batch, or 0 if batch norm would get a single value per channel.

        This happens if the coarsest feature map of the whole batch has one position, as with a small scale of the
        jitter and one image per micro-batch. Synchronized batch norm also has the values of other ranks.
        """
        if any(isinstance(module, nn.SyncBatchNorm) for module in self.model.modules()):
            return len(batch.images)
        stride = self.model.backbone.strides[-2]
        sizes = [image.shape[-2:] for image in batch.images]
        return len(sizes) if sum(-(-height // stride) * -(-width // stride) for height, width in sizes) > 1 else 0

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses, each a mean over the regions sampled in a micro-batch, times its number of images."""
        losses = self.model(batch.images, batch.targets)
        sums = {name: losses[key].float() * len(batch.images) for key, name in LOSS_NAMES.items()}
        return {"loss": torch.stack(list(sums.values())).sum()} | sums
