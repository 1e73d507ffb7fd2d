"""The detection recipe: Mask R-CNN with a feature pyramid, trained on annotations in COCO format."""

from typing import ClassVar

from pydantic import PositiveInt

from lambdanets.inference.architecture import DetectorArchitecture
from lambdanets.records import Count, Fraction, record
from lambdanets.tasks.coco.recipe import CocoRecipe
from lambdanets.training.recipe import NonNegative


@record
class DetectionRecipe(CocoRecipe, DetectorArchitecture):
    """Hyperparameters of Mask R-CNN training."""

    task: ClassVar[str] = "detection"

    epochs: Count = 12
    batch_size: Count = 8
    learning_rate: NonNegative = 0.02
    warmup_epochs: NonNegative = 1.0
    weight_decay: NonNegative = 4e-5

    max_objects: PositiveInt = 300
    """Maximum number of objects per training image. If an image has more, each epoch uses a random subset."""
    sampled_regions: PositiveInt = 512
    """Proposals per image that the heads are trained on. At most a quarter of them are positive."""
    drop_path: Fraction = 0.0
    """Stochastic depth rate of the last block of the backbone. The rate increases linearly over the blocks."""
