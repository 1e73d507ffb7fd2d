"""The segmentation recipe: a network with one output per class and pixel, trained on annotations in COCO format."""

from typing import Annotated, ClassVar

from pydantic import Field

from lambdanets.records import Count, record
from lambdanets.tasks.coco.recipe import CocoRecipe
from lambdanets.training.recipe import NonNegative, Optimizer


@record
class SegmentationRecipe(CocoRecipe):
    """Hyperparameters of semantic segmentation training."""

    task: ClassVar[str] = "segmentation"
    CHANGEABLE: ClassVar[tuple[str, ...]] = (*CocoRecipe.CHANGEABLE, "compile")

    model: str = "lambda_unet_small"
    """Model name: a U-Net of this package, or a model in timm's registry with one output per class and pixel."""
    epochs: Count = 30
    batch_size: Count = 8
    optimizer: Optimizer = "adamw"
    learning_rate: NonNegative = 0.002
    warmup_epochs: NonNegative = 1.0
    weight_decay: NonNegative = 0.01

    image_size: Annotated[int, Field(ge=32, le=10_000)] = 256
    """Side of the random crops in training, in pixels. Smaller images are padded; padding is ignored in the loss."""
    rotate: bool = False
    """Rotate by a random multiple of 90 degrees in training."""
    dice_weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Weight of the Dice loss, which is added to the cross entropy."""
    compile: bool = False
    """Compile the model with torch.compile."""
