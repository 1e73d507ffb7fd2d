"""The classification recipe: images of one class each, from a dataset, an image folder or shards."""

import dataclasses
import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from lambdanets.bounds import VALIDATION_SHARE_RANGE, Range
from lambdanets.errors import InputError
from lambdanets.training.recipe import TrainingRecipe

if TYPE_CHECKING:
    from lambdanets.data.transforms import Preprocessing


@dataclasses.dataclass(frozen=True)
class ClassificationRecipe(TrainingRecipe):
    """Hyperparameters of classifier training."""

    task: ClassVar[str] = "classification"
    PATHS: ClassVar[tuple[str, ...]] = ("data", "data_root", "weights")
    REQUIRED: ClassVar[tuple[str, ...]] = ("data", "weights")
    CHANGEABLE: ClassVar[tuple[str, ...]] = ("data", "data_root", *TrainingRecipe.CHANGEABLE)
    MIN_MICRO_BATCH: ClassVar[int] = 2  # batch norm after global pooling needs two values per channel
    RANGES: ClassVar[dict[str, Range]] = TrainingRecipe.RANGES | {
        "batch_size": Range(2, 1_000_000),
        "image_size": Range(8, 10_000),
        "training_images": Range(1),
        "validation_share": VALIDATION_SHARE_RANGE,
        "hold_out": Range(0, 0.9),
        "patience": Range(above=0),
        **dict.fromkeys(("drop_path", "dropout", "label_smoothing", "flip"), Range(0, 1)),
        "std": Range(above=0),
        "crop_padding": Range(0, 1000),
        "crop_pct": Range(above=0, maximum=1),
    }

    data: str = ""
    """'digits', an image folder (CLASS/ or train/CLASS/), a .tar of one, shards, or timm's name such as torch/mnist."""
    data_root: str | None = None
    """Root folder for a dataset of timm, such as --data torch/cifar10."""
    validation_share: float = 0.2
    """Fraction of each class that is used for validation if the data has no validation split."""
    hold_out: float = 0.0
    """Fraction of the training images held out to select the best epoch; the validation split is then a test set."""
    patience: int | None = None
    """Stop after this many epochs without better top-1 and use the best epoch's weights. If none, train all epochs."""
    training_images: int | None = None
    """Number of training images to use, chosen at random, stratified by class. If none, all are used."""
    image_size: int = 224
    """Height and width of the input images, in pixels."""
    channels: Literal[1, 3] = 3
    """Input channels: 1 for grayscale, 3 for RGB."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean for normalizing pixels in [0, 1]: one number, or one per channel."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation for normalizing pixels in [0, 1]: one number, or one per channel."""
    scale: tuple[float, float] = (0.08, 1.0)
    """RandomResizedCrop in training: range of the crop's area, as a fraction of the image's area."""
    ratio: tuple[float, float] = (0.75, 1.333)
    """RandomResizedCrop in training: range of the crop's aspect ratio, width divided by height."""
    crop_padding: int = 0
    """If positive, crop at full size from the image padded by this many pixels, instead of RandomResizedCrop."""
    crop_pct: float = 0.875
    """Center crop in evaluation, as a fraction of the shorter side of the resized image."""
    flip: float = 0.5
    """Probability of a horizontal flip in training."""
    rand_augment: str | None = None
    """RandAugment policy in timm's notation, such as rand-m10-n2. If none, RandAugment is not used."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """Interpolation for resizing images."""
    drop_path: float = 0.0
    """Stochastic depth rate of the last block. The rate increases linearly over the blocks."""
    dropout: float = 0.0
    """Dropout rate before the last linear layer."""
    label_smoothing: float = 0.1
    """Label smoothing, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise InputError(
                    f"{name} must be one number or one for each of {self.channels} channels, got {getattr(self, name)}"
                )
        check_rand_augment(self.rand_augment)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale must be two numbers in (0, 1], the smaller first, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio must be two positive numbers, the smaller first, got {self.ratio}")

    @property
    def preprocessing(self) -> "Preprocessing":
        """Return the preprocessing for evaluation."""
        from lambdanets.data.transforms import Preprocessing  # here, so that --help does not import timm

        return Preprocessing(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Preprocessing)})

    @classmethod
    def from_fields(cls, fields: dict[str, Any], source: str) -> Self:
        if cls is ClassificationRecipe and fields.get("pseudo_labels") is None:
            # recipes of earlier versions have fields of students, without values
            fields = {name: value for name, value in fields.items() if not name.startswith("pseudo_")}
        return super().from_fields(fields, source)


def check_rand_augment(policy: str | None) -> None:
    """Raise InputError for a RandAugment policy with numbers out of range, which timm would accept.

    timm checks the rest of the policy when it builds the transform.
    """
    settings = dict(re.findall(r"-(m|mmax|n)(\d+)(?=-|$)", policy or ""))
    max_magnitude = max(10, int(settings.get("mmax", 10)))
    problem = None
    if policy == "":
        problem = "must be a policy like rand-m10-n2, or None"
    elif max_magnitude > 30:
        problem = "must have a maximum magnitude mmax of at most 30"
    elif int(settings.get("m", 0)) > max_magnitude:
        problem = f"must have a magnitude m of at most {max_magnitude}"
    elif int(settings.get("n", 1)) not in range(1, 17):
        problem = "must have a number of operations n from 1 to 16"
    if problem:
        raise InputError(f"rand_augment {problem}, got {policy!r}")
