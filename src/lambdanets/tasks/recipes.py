"""The recipes of the tasks. They do not import PyTorch, so that --help is fast."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.inference.model_card import DetectorArchitecture, Normalization
from lambdanets.records import Count, Fraction, Fractions, Range, ValidationShare, record, shared_fields
from lambdanets.training.recipe import NonNegative, Optimizer, TrainingRecipe


@record
class ClassificationRecipe(TrainingRecipe, Preprocessing):
    """Hyperparameters of classifier training."""

    task: ClassVar[str] = "classification"
    PATHS: ClassVar[tuple[str, ...]] = ("data", "data_root", "weights")

    data: str = ""
    """'digits', an image folder (CLASS/ or train/CLASS/), a .tar of one, shards, or timm's name such as torch/mnist."""
    data_root: str | None = None
    """Root folder for a dataset of timm, such as --data torch/cifar10."""
    validation_share: ValidationShare = 0.2
    """Fraction of each class that is used for validation if the data has no validation split."""
    hold_out: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """Fraction of the training images held out to select the best epoch; the validation split is then a test set."""
    patience: PositiveInt | None = None
    """Stop after this many epochs without better top-1 and use the best epoch's weights. If none, train all epochs."""
    training_images: PositiveInt | None = None
    """Number of training images to use, chosen at random, stratified by class. If none, all are used."""
    scale: Fractions = (0.08, 1.0)
    """RandomResizedCrop in training: range of the crop's area, as a fraction of the image's area."""
    ratio: Range = (0.75, 1.333)
    """RandomResizedCrop in training: range of the crop's aspect ratio, width divided by height."""
    crop_padding: Annotated[int, Field(ge=0, le=1000)] = 0
    """If positive, crop at full size from the image padded by this many pixels, instead of RandomResizedCrop."""
    flip: Fraction = 0.5
    """Probability of a horizontal flip in training."""
    rand_augment: str | None = None
    """RandAugment policy in timm's notation, such as rand-m10-n2. If none, RandAugment is not used."""
    drop_path: Fraction = 0.0
    """Stochastic depth rate of the last block. The rate increases linearly over the blocks."""
    dropout: Fraction = 0.0
    """Dropout rate before the last linear layer."""
    label_smoothing: Fraction = 0.1
    """Label smoothing, in [0, 1]."""
    compile: bool = False
    """Compile the model with torch.compile."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing for evaluation."""
        return Preprocessing(**shared_fields(self, Preprocessing))


@record
class CocoRecipe(TrainingRecipe, Normalization):
    """Hyperparameters of all tasks on COCO-format annotations."""

    PATHS: ClassVar[tuple[str, ...]] = ("data", "images", "validation_data", "validation_images", "weights")

    batch_size: Count = 8
    warmup_epochs: NonNegative = 1.0

    data: str = ""
    """Training annotations: a JSON file in COCO format, or 'digits' for scanned digits scattered over images."""
    images: str | None = ""
    """Training images: a folder or an uncompressed tar. None with --data digits."""
    validation_data: str | None = ""
    """Validation annotations: a JSON file in COCO format. Not used with --data digits."""
    validation_images: str | None = None
    """Validation images: a folder or an uncompressed tar. If none, they are looked up in --images."""
    training_images: PositiveInt | None = None
    """Number of training images to use, chosen at random. If none, all are used."""
    stretch: bool = False
    """Map the intensities of background and objects to the same values in all images, for micrographs of any bit depth
    and brightness. Also done if the model of --weights, such as nuclei, does it."""
    jitter: Range = (0.8, 1.25)
    """Scale jitter in training: range of the random factor of the scale. For detection, factor 1 fits an image into the
    image size; for segmentation, it leaves an image at its own resolution."""
    flip: Fraction = 0.5
    """Probability of a horizontal flip in training."""

    def __post_init__(self) -> None:
        for name in ("images", "validation_data", "validation_images"):
            value = getattr(self, name)
            if self.data == "digits" and value:
                raise InputError(f"{name} must not be set with data 'digits', which has its own images, got {value!r}")
            if not value:  # "" must be given
                is_optional = self.data == "digits" or name == "validation_images"
                object.__setattr__(self, name, None if is_optional else "")


@record
class DetectionRecipe(CocoRecipe, DetectorArchitecture):
    """Hyperparameters of Mask R-CNN training."""

    task: ClassVar[str] = "detection"

    epochs: Count = 12
    learning_rate: NonNegative = 0.02
    weight_decay: NonNegative = 4e-5

    max_objects: PositiveInt = 300
    """Maximum number of objects per training image. If an image has more, each epoch uses a random subset."""
    sampled_regions: PositiveInt = 512
    """Proposals per image that the heads are trained on. At most a quarter of them are positive."""
    drop_path: Fraction = 0.0
    """Stochastic depth rate of the last block of the backbone. The rate increases linearly over the blocks."""


@record
class SegmentationRecipe(CocoRecipe):
    """Hyperparameters of semantic segmentation training."""

    task: ClassVar[str] = "segmentation"

    model: str = "lambda_unet_small"
    """Model name: a U-Net of this package, or a model in timm's registry with one output per class and pixel."""
    epochs: Count = 30
    optimizer: Optimizer = "adamw"
    learning_rate: NonNegative = 0.002
    weight_decay: NonNegative = 0.01

    image_size: Annotated[int, Field(ge=32, le=10_000)] = 256
    """Side of the random crops in training, in pixels. Smaller images are padded; padding is ignored in the loss."""
    rotate: bool = False
    """Rotate by a random multiple of 90 degrees in training."""
    dice_weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Weight of the Dice loss, which is added to the cross entropy."""
    compile: bool = False
    """Compile the model with torch.compile."""
