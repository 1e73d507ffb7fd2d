"""The loss of semantic segmentation: cross entropy plus soft Dice loss. The memory probe calls it, too."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.data.coco.semantic_masks import IGNORED

_SMOOTHING = 1.0  # pixels


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
