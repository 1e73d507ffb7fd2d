"""The segmentation recipe: a network with one output per class and pixel, trained on annotations in COCO format."""

import dataclasses
from typing import ClassVar

from lambdanets.bounds import Range
from lambdanets.training.coco.recipe import CocoRecipe
from lambdanets.training.recipe import Optimizer


@dataclasses.dataclass(frozen=True)
class SegmentationRecipe(CocoRecipe):
    """Hyperparameters of semantic segmentation training."""

    task: ClassVar[str] = "segmentation"
    RANGES: ClassVar[dict[str, Range]] = CocoRecipe.RANGES | {
        "image_size": Range(32, 10_000),
        "dice_weight": Range(0, 1000),
    }

    model: str = "lambda_unet_small"
    """Model name: a U-Net of this package, or a model in timm's registry with one output per class and pixel."""
    epochs: int = 30
    """Number of epochs."""
    batch_size: int = 8
    """Global batch size: images per step over all ranks."""
    optimizer: Optimizer = "adamw"
    """sgd: with momentum, without Nesterov; rmsprop: as in TensorFlow, with decay 0.9; adamw."""
    learning_rate: float = 0.002
    """Peak learning rate, reached after the warm-up. It is not scaled with the batch size."""
    warmup_epochs: float = 1.0
    """Epochs of linear learning rate warm-up from 0."""
    weight_decay: float = 0.01
    """Weight decay, except for norm layers, biases and embedding tables."""

    image_size: int = 256
    """Side of the random crops in training, in pixels. Smaller images are padded; padding is ignored in the loss."""
    rotate: bool = False
    """Rotate by a random multiple of 90 degrees in training."""
    dice_weight: float = 1.0
    """Weight of the Dice loss, which is added to the cross entropy."""
