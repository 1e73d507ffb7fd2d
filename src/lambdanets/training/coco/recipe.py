"""The fields of recipes for COCO-format annotations."""

import dataclasses
from typing import ClassVar

from lambdanets.bounds import Range
from lambdanets.errors import InputError
from lambdanets.training.recipe import TrainingRecipe


@dataclasses.dataclass(frozen=True)
class CocoRecipe(TrainingRecipe):
    """Hyperparameters of all tasks on COCO-format annotations."""

    PATHS: ClassVar[tuple[str, ...]] = ("data", "images", "validation_data", "validation_images", "weights")
    REQUIRED: ClassVar[tuple[str, ...]] = PATHS
    CHANGEABLE: ClassVar[tuple[str, ...]] = (*PATHS[:4], *TrainingRecipe.CHANGEABLE)
    RANGES: ClassVar[dict[str, Range]] = TrainingRecipe.RANGES | {
        "training_images": Range(1),
        "std": Range(above=0),
        "flip": Range(0, 1),
    }

    data: str = ""
    """Training annotations: a JSON file in COCO format, or 'digits' for scanned digits scattered over images."""
    images: str | None = None
    """Training images: a folder or an uncompressed tar."""
    validation_data: str | None = None
    """Validation annotations: a JSON file in COCO format. Not used with --data digits."""
    validation_images: str | None = None
    """Validation images: a folder or an uncompressed tar. If none, they are looked up in --images."""
    training_images: int | None = None
    """Number of training images to use, chosen at random. If none, all are used."""
    jitter: tuple[float, float] = (0.8, 1.25)
    """Range of the random scale factor in training."""
    flip: float = 0.5
    """Probability of a horizontal flip in training."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean for normalizing pixels in [0, 1], one number per channel."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation for normalizing pixels in [0, 1], one number per channel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.jitter[0] <= self.jitter[1]:
            raise InputError(f"jitter must be two positive numbers, the smaller first, got {self.jitter}")
        if self.data not in ("digits", "") and (self.images is None or self.validation_data is None):
            missing = "images" if self.images is None else "validation_data"
            raise InputError(f"{missing} must be set with data {self.data!r}, got none")
        paths = [name for name in ("images", "validation_data", "validation_images") if getattr(self, name) is not None]
        if self.data == "digits" and paths:
            raise InputError(
                f"{paths[0]} must not be set with data 'digits', which has its own images, "
                f"got {getattr(self, paths[0])!r}"
            )
