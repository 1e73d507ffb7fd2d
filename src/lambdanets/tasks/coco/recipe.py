"""The fields of recipes for COCO-format annotations."""

from typing import ClassVar

from pydantic import PositiveInt

from lambdanets.errors import InputError
from lambdanets.inference.architecture import Normalization
from lambdanets.records import Fraction, Range, record
from lambdanets.training.recipe import TrainingRecipe


@record
class CocoRecipe(TrainingRecipe, Normalization):
    """Hyperparameters of all tasks on COCO-format annotations."""

    PATHS: ClassVar[tuple[str, ...]] = ("data", "images", "validation_data", "validation_images", "weights")
    CHANGEABLE: ClassVar[tuple[str, ...]] = (*PATHS[:4], *TrainingRecipe.CHANGEABLE)

    data: str = ""
    """Training annotations: a JSON file in COCO format, or 'digits' for scanned digits scattered over images."""
    images: str | None = None
    """Training images: a folder or an uncompressed tar."""
    validation_data: str | None = None
    """Validation annotations: a JSON file in COCO format. Not used with --data digits."""
    validation_images: str | None = None
    """Validation images: a folder or an uncompressed tar. If none, they are looked up in --images."""
    training_images: PositiveInt | None = None
    """Number of training images to use, chosen at random. If none, all are used."""
    jitter: Range = (0.8, 1.25)
    """Range of the random scale factor in training."""
    flip: Fraction = 0.5
    """Probability of a horizontal flip in training."""

    def __post_init__(self) -> None:
        if self.data not in ("digits", "") and (self.images is None or self.validation_data is None):
            missing = "images" if self.images is None else "validation_data"
            raise InputError(f"{missing} must be set with data {self.data!r}, got none")
        paths = [name for name in ("images", "validation_data", "validation_images") if getattr(self, name) is not None]
        if self.data == "digits" and paths:
            raise InputError(
                f"{paths[0]} must not be set with data 'digits', which has its own images, "
                f"got {getattr(self, paths[0])!r}"
            )
