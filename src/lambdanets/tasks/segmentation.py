"""The segmentation task: data, augmentation, model and loss."""

import random
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.batches import Batch, Batches
from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import IGNORED, SEMANTIC_MASK, Target, image_to_tensor, make_semantic_mask
from lambdanets.errors import InputError
from lambdanets.inference.segmentation_scores import SCORES
from lambdanets.tasks.coco import CocoTask
from lambdanets.tasks.recipes import SegmentationRecipe

_SMOOTHING = 1.0  # pixels, of the Dice loss


def augment(image: Image, annotated: AnnotatedImage, recipe: SegmentationRecipe) -> tuple[Tensor, Target]:
    """Return a random crop of a scaled image, normalized, (3, S, S) with S = image_size, and its semantic mask (S, S).

    If the scaled image is smaller than S, the rest of the crop is 0 in the image and IGNORED in the semantic mask. Then
    the crop is flipped and rotated. Uses Python's global random generator.
    """
    scale, size = random.uniform(*recipe.jitter), recipe.image_size
    (top, height, new_height), (left, width, new_width) = (_random_crop(side, scale, size) for side in image.size[::-1])
    crop = image_to_tensor(image.convert("RGB").crop((left, top, left + width, top + height)))
    semantic_mask = torch.from_numpy(make_semantic_mask(annotated)[None, top : top + height, left : left + width])
    crop = transforms.resize(crop, [new_height, new_width], antialias=True)
    semantic_mask = transforms.resize(semantic_mask, [new_height, new_width], InterpolationMode.NEAREST_EXACT)
    crop = transforms.normalize(crop, [*recipe.mean], [*recipe.std])
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


class SegmentationTask(CocoTask):
    """Semantic segmentation."""

    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss", "cross_entropy", "dice_loss")
    VALIDATION_METRICS: ClassVar[tuple[str, ...]] = SCORES
    BEST_METRIC: ClassVar[str] = "dice"

    recipe: SegmentationRecipe

    def batches(self, **options: Any) -> Batches:
        return Batches(self.training, partial(augment, recipe=self.recipe), **options)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.model(torch.stack(batch.images).contiguous(memory_format=torch.channels_last))
        targets = torch.stack([target[SEMANTIC_MASK] for target in batch.targets])
        expected = (len(targets), 1 + len(self.classes), *targets.shape[1:])
        if tuple(logits.shape) != expected:
            raise InputError(
                f"model must return one number per class and pixel, {expected}, got {tuple(logits.shape)} from "
                f"{self.recipe.model}; choose a U-Net such as lambda_unet_small"
            )
        cross_entropy, dice_loss = (losses.sum() for losses in cross_entropy_and_dice(logits, targets))
        loss = cross_entropy + self.recipe.dice_weight * dice_loss
        return {"loss": loss, "cross_entropy": cross_entropy, "dice_loss": dice_loss}


def cross_entropy_and_dice(logits: Tensor, semantic_masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy and the soft Dice loss of each image, both (b,) float32.

    logits: (b, c, H, W). semantic_masks: (b, H, W) uint8; IGNORED pixels are left out.

    With p_ic the probability of class c at pixel i, y_ic = 1 if c is the pixel's class and else 0, and N pixels:

        cross entropy = -1/N sum_ic y_ic log p_ic
        Dice loss = 1 - mean over c of (2 sum_i p_ic y_ic + 1) / (sum_i p_ic + sum_i y_ic + 1)

    The mean is over all classes but the background, which is class 0. Unlike in V-Net (Milletari et al. 2016),
    probabilities are not squared, and numerator and denominator are smoothed by 1 pixel, so that the loss is defined
    for classes that are not in the image. Both losses are per image, so they do not depend on the micro-batches.
    """
    logits = logits.float()
    valid = semantic_masks != IGNORED
    num_pixels = valid.flatten(1).sum(1).clamp(min=1)
    losses = F.cross_entropy(logits, semantic_masks.long(), ignore_index=IGNORED, reduction="none")
    cross_entropy = losses.flatten(1).sum(1) / num_pixels
    probabilities = (logits.softmax(1) * valid.unsqueeze(1)).flatten(2)
    class_indices = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1)
    targets = (semantic_masks.flatten(1).unsqueeze(1) == class_indices).float()
    intersection, cardinality = (probabilities * targets).sum(2), probabilities.sum(2) + targets.sum(2)
    dice = (2 * intersection + _SMOOTHING) / (cardinality + _SMOOTHING)
    return cross_entropy, 1 - dice[:, 1:].mean(1)
