"""Recipes: all hyperparameters of a training run, one flat frozen dataclass per task."""

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from lambdanets.bounds import VALIDATION_SHARE_RANGE, WORKERS_RANGE, Range, convert, field_types
from lambdanets.errors import InputError, nearest
from lambdanets.records import parse_json, reraise_as_input_error

if TYPE_CHECKING:
    from lambdanets.data.transforms import Preprocessing

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
Optimizer = Literal["sgd", "rmsprop", "adamw"]
Schedule = Literal["cosine", "staircase", "late_steps"]
ModelOptions = dict[str, bool | int | float | str]


@dataclasses.dataclass(frozen=True)
class TrainingRecipe:
    """Hyperparameters that every task has."""

    task: ClassVar[str]
    # folders, files, URLs; those in REQUIRED must be given where the recipe has ""
    PATHS: ClassVar[tuple[str, ...]] = ("data", "weights")
    REQUIRED: ClassVar[tuple[str, ...]] = PATHS
    # fields that may change when a run is resumed: they change the result by rounding at most
    FREE: ClassVar[tuple[str, ...]] = (
        "weights",
        "workers",
        "checkpoint_every",
        "max_unreadable",
        "micro_batch",
        "compile",
    )
    # fields of which a resumed run must have either both or none, whatever their values
    KEPT_IF_GIVEN: ClassVar[tuple[str, ...]] = ()
    MIN_MICRO_BATCH: ClassVar[int] = 1
    # former field names in recipe.json, and the present ones
    ALIASES: ClassVar[dict[str, str]] = {
        "crop_share": "scale",
        "crop_ratio": "ratio",
        "eval_crop": "crop_pct",
        "average_decay": "ema_decay",
    }
    RANGES: ClassVar[dict[str, Range]] = {
        "batch_norm_momentum": Range(above=0, maximum=1),
        "freeze_batch_norm": Range(0, below=1),
        "epochs": Range(1, 1_000_000),
        "batch_size": Range(1, 1_000_000),
        "learning_rate": Range(0, 1e30),
        "decay": Range(above=0, maximum=1),
        "decay_epochs": Range(above=0),
        "momentum": Range(0, below=1),
        "weight_decay": Range(0, 1e30),
        "warmup_epochs": Range(0),
        "clip_gradient": Range(above=0),
        "ema_decay": Range(0, below=1),
        "seed": Range(0, 2**63 - 1),
        "workers": WORKERS_RANGE,
        "checkpoint_every": Range(1),
        "max_unreadable": Range(0),
    }

    data: str = ""
    """Training data."""
    model: str = ""
    """Model name, of this package or of timm."""
    model_options: ModelOptions = dataclasses.field(default_factory=dict)
    """Keyword arguments of the model, such as: scope 7 content False."""
    weights: str | None = None
    """Initial weights: a weight file or run folder; random if none. A head for other classes is re-initialized."""
    epochs: int = 100
    """Number of epochs."""
    batch_size: int = 64
    """Global batch size, over all ranks."""
    micro_batch: int | None = None
    """Images per forward pass on a rank, with gradient accumulation; the most that fit into memory if none."""
    learning_rate: float = 0.1
    """Peak learning rate, after the warm-up; not scaled with the batch size."""
    warmup_epochs: float = 5.0
    """Epochs of linear warm-up from 0."""
    schedule: Schedule = "cosine"
    """cosine: to 0; staircase: times decay every decay_epochs; late_steps: times 0.1 at 90, 95, 97.5% of steps."""
    decay: float = 0.99
    """Decay factor of the staircase schedule."""
    decay_epochs: float = 3.0
    """Epochs per step of the staircase schedule."""
    optimizer: Optimizer = "sgd"
    """sgd: with momentum, not Nesterov; rmsprop: TensorFlow's, with decay 0.9; adamw."""
    momentum: float = 0.9
    """Momentum of sgd and rmsprop; beta1 of adamw."""
    weight_decay: float = 1e-4
    """Weight decay, except for norm layers, biases and embedding tables."""
    clip_gradient: float | None = None
    """Maximum norm of the gradient; no clipping if none."""
    ema_decay: float | None = None
    """Decay of the EMA of the weights, min(ema_decay, (1 + step) / (10 + step)); the EMA is validated and saved."""
    batch_norm_momentum: float | None = None
    """Momentum of batch norm as in PyTorch (1 minus TensorFlow's decay); the model's own if none."""
    freeze_batch_norm: float = 0.0
    """Fraction of the steps, at the end, with batch norm in eval mode. For small batches."""
    sync_batch_norm: bool = False
    """Synchronize batch norm across GPUs."""
    precision: Precision = "auto"
    """float32, or autocast to bfloat16 or float16. auto: bf16-mixed on GPUs that support it, else 32-true."""
    compile: bool = False
    """Compile the model with torch.compile."""
    seed: int = 0
    """Random seed of initialization, splits, data order and augmentation."""
    workers: int = 0
    """Data loading worker processes; 0 loads in the main process. Does not change the result."""
    checkpoint_every: int = 200
    """Steps between checkpoints; each epoch ends with one as well."""
    max_unreadable: int = 1000
    """Maximum number of unreadable images, which are skipped with a warning."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, annotation in field_types(kind).items():
            object.__setattr__(self, name, convert(getattr(self, name), annotation, name, self.RANGES.get(name)))
        if self.micro_batch is not None and self.micro_batch < self.MIN_MICRO_BATCH:
            need = ", as batch norm needs" if self.MIN_MICRO_BATCH > 1 else ""
            raise InputError(f"micro_batch must be at least {self.MIN_MICRO_BATCH}{need}, got {self.micro_batch}")

    @property
    def pseudo_batch_size(self) -> int:
        """Pseudo-labeled images per step, in addition to batch_size."""
        return 0

    def without_free_fields(self) -> Self:
        """The recipe with defaults in all fields that may change when a run is resumed."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        free: dict[str, Any] = {name: defaults[name] for name in self.FREE}
        given = {name: "" for name in self.KEPT_IF_GIVEN if getattr(self, name) is not None}
        return dataclasses.replace(self, **free | given)

    def fields(self) -> dict[str, Any]:
        """The task and all fields."""
        return {"task": self.task} | dataclasses.asdict(self)

    def to_json(self) -> str:
        """The task and all fields as JSON, for `from_json`."""
        return json.dumps(self.fields(), indent=2)

    @classmethod
    def from_json(cls, content: bytes, source: str) -> Self:
        """Read what `to_json` wrote; source names the file in errors."""
        return cls.from_fields(parse_json(content, dict[str, Any], f"{source} is not a valid recipe"), source)

    @classmethod
    def from_fields(cls, fields: dict[str, Any], source: str) -> Self:
        """A recipe from field values; missing fields have their defaults, but data and model are required.

        Raises ValueError for another task, an unknown field and a value of the wrong type or range; source names the
        file in errors.
        """
        fields = renamed(fields, source)
        task = fields.pop("task", "classification")
        if task != cls.task:
            raise InputError(f"{source} must be a {cls.task} recipe, got a {task} recipe")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise InputError(f"{source} has the unknown field {name!r}{nearest(name, known)}")
        for name in ("data", "model"):
            if name not in fields:
                raise InputError(f"{source} must have the field {name!r}")
        with reraise_as_input_error(source):
            return convert(fields, cls)


@dataclasses.dataclass(frozen=True)
class Recipe(TrainingRecipe):
    """Hyperparameters of a classifier's training."""

    task: ClassVar[str] = "classification"
    PATHS: ClassVar[tuple[str, ...]] = ("data", "data_root", "weights", "pseudo_labels", "pseudo_images")
    REQUIRED: ClassVar[tuple[str, ...]] = ("data", "weights", "pseudo_labels", "pseudo_images")
    FREE: ClassVar[tuple[str, ...]] = ("data", "data_root", *TrainingRecipe.FREE)
    KEPT_IF_GIVEN: ClassVar[tuple[str, ...]] = ("pseudo_labels", "pseudo_images")
    MIN_MICRO_BATCH: ClassVar[int] = 2  # of batch norm behind global pooling
    RANGES: ClassVar[dict[str, Range]] = TrainingRecipe.RANGES | {
        "batch_size": Range(2, 1_000_000),
        "image_size": Range(8, 10_000),
        "training_images": Range(1),
        "validation_share": VALIDATION_SHARE_RANGE,
        "hold_out": Range(0, 0.9),
        "patience": Range(above=0),
        "pseudo_ratio": Range(above=0),
        **dict.fromkeys(("drop_path", "dropout", "label_smoothing", "flip"), Range(0, 1)),
        "std": Range(above=0),
        "crop_pct": Range(above=0, maximum=1),
    }

    data: str = ""
    """'digits', an image folder (CLASS/ or train/CLASS/), MNIST's folder, a .tar, shards, or torch/NAME of timm."""
    data_root: str | None = None
    """Root folder of a timm data set, such as of --data torch/cifar10."""
    validation_share: float = 0.2
    """Fraction of each class used for validation if the data has no validation split."""
    hold_out: float = 0.0
    """Fraction of the training images held out for model selection; the result is on the validation split."""
    patience: int | None = None
    """Early stopping: epochs without better top-1, then the best epoch's weights; no early stopping if none."""
    training_images: int | None = None
    """Train on a random subset of this size, stratified by class; on all images if none."""
    pseudo_labels: str | None = None
    """Folder of selected pseudo-labels (lambdanets pseudo-label select) to train on as well."""
    pseudo_images: str | None = None
    """Shards of the pseudo-labeled images, a folder or a URL."""
    pseudo_ratio: float = 1.0
    """Pseudo-labeled images per labeled image in a batch. An epoch is one pass over the labeled images."""
    pseudo_targets: Literal["soft", "hard"] = "soft"
    """soft: the teacher's distribution; hard: its most probable class."""
    image_size: int = 224
    """Side of the input images, pixels."""
    channels: Literal[1, 3] = 3
    """Input channels: 1 for grayscale, 3 for RGB."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean for normalization of pixels in [0, 1]; one number, or one per channel."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation for normalization; one number, or one per channel."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Area range of RandomResizedCrop, as a fraction of the image."""
    ratio: tuple[float, float] = (0.75, 1.333)
    """Aspect ratio range of RandomResizedCrop, width over height."""
    crop_pct: float = 0.875
    """Side of the center crop in evaluation, as a fraction of the resized image's shorter side."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    rand_augment: str | None = None
    """RandAugment policy in timm's notation, such as rand-m10-n2; no RandAugment if none."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """Interpolation of resized images."""
    drop_path: float = 0.0
    """Maximum stochastic depth rate, of the last block."""
    dropout: float = 0.0
    """Dropout rate before the classifier."""
    label_smoothing: float = 0.1
    """Label smoothing, between 0 and 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.pseudo_labels is None) != (self.pseudo_images is None):
            raise InputError("pseudo_labels and pseudo_images must be given together, got one without the other")
        if self.pseudo_labels is not None and not self.pseudo_batch_size:
            raise InputError(
                f"pseudo_ratio must give at least one pseudo-labeled image per batch of {self.batch_size}, "
                f"got {self.pseudo_ratio}"
            )
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise InputError(
                    f"{name} must be one number or one for each of {self.channels} channels, got {getattr(self, name)}"
                )
        check_policy(self.rand_augment)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale must be two numbers in (0, 1], the smaller first, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio must be two positive numbers, the smaller first, got {self.ratio}")

    @property
    def preprocessing(self) -> "Preprocessing":
        """Preprocessing in evaluation."""
        from lambdanets.data.transforms import Preprocessing  # help does not wait for timm

        return Preprocessing(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Preprocessing)})

    @property
    def pseudo_batch_size(self) -> int:
        """Pseudo-labeled images per step."""
        return round(self.batch_size * self.pseudo_ratio) if self.pseudo_labels is not None else 0


def renamed(fields: dict[str, Any], source: str) -> dict[str, Any]:
    """Rename former field names. Raises InputError where a field is given by both its names."""
    for before, now in TrainingRecipe.ALIASES.items():
        if before in fields and now in fields:
            raise InputError(f"{source} has the field {now!r} under its former name {before!r} too; remove one")
    return {TrainingRecipe.ALIASES.get(name, name): value for name, value in fields.items()}


def check_policy(policy: str | None) -> None:
    """Raise InputError for a RandAugment policy with numbers out of range, which timm accepts.

    timm checks the rest of the name when it builds the policy.
    """
    parts = dict(re.findall(r"-(m|mmax|n)(\d+)(?=-|$)", policy or ""))
    most = max(10, int(parts.get("mmax", 10)))
    fault = None
    if policy == "":
        fault = "must be a policy like rand-m10-n2, or None"
    elif most > 30:
        fault = "must have a largest magnitude mmax of at most 30"
    elif int(parts.get("m", 0)) > most:
        fault = f"must have a magnitude m of at most {most}"
    elif int(parts.get("n", 1)) not in range(1, 17):
        fault = "must have from 1 to 16 operations n"
    if fault:
        raise InputError(f"rand_augment {fault}, got {policy!r}")
