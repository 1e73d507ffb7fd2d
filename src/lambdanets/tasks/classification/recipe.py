"""The classification recipe: images of one class each, from a dataset, an image folder or shards."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.records import Fraction, Range, ValidationShare, record, shared_fields
from lambdanets.training.recipe import TrainingRecipe


@record
class ClassificationRecipe(TrainingRecipe, Preprocessing):
    """Hyperparameters of classifier training."""

    task: ClassVar[str] = "classification"
    PATHS: ClassVar[tuple[str, ...]] = ("data", "data_root", "weights")
    CHANGEABLE: ClassVar[tuple[str, ...]] = ("data", "data_root", *TrainingRecipe.CHANGEABLE, "compile")

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
    scale: Range = (0.08, 1.0)
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale[1] > 1:
            raise InputError(f"scale must be at most 1, since a crop is a part of the image, got {self.scale}")

    @property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing for evaluation."""
        return Preprocessing(**shared_fields(self, Preprocessing))
