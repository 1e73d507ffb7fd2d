"""Recipes: everything that decides a training run, as one flat frozen dataclass for each task."""

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from lambdanets.bounds import VALIDATION_SHARE, WORKERS, Range, check, types_of_fields
from lambdanets.errors import InputError, nearest

if TYPE_CHECKING:
    from lambdanets.data.transforms import Preprocessing

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
Optimizer = Literal["sgd", "rmsprop", "adamw"]
Schedule = Literal["cosine", "staircase", "late_steps"]
ModelOptions = dict[str, bool | int | float | str]
# Names that fields had in recipe.json files of before, and have now.
_RENAMED = {"crop_share": "scale", "crop_ratio": "ratio", "eval_crop": "crop_pct", "average_decay": "ema_decay"}


@dataclasses.dataclass(frozen=True)
class TrainingRecipe:
    """What any training has: the model, its steps, and how they are computed. A task's recipe has its fields beside."""

    task: ClassVar[str]
    # folders, files, URLs; of those that are TO_GIVE, "" stands for one that the recipe leaves to be given
    PLACES: ClassVar[tuple[str, ...]] = ("weights",)
    TO_GIVE: ClassVar[tuple[str, ...]] = ("weights",)
    # fields that change nothing about what is computed, but rounding
    FREE: ClassVar[tuple[str, ...]] = (
        "weights",
        "workers",
        "checkpoint_every",
        "max_unreadable",
        "micro_batch",
        "compile",
    )
    # of which also whether they are given counts
    GIVEN_COUNTS: ClassVar[tuple[str, ...]] = ()
    LEAST_PART: ClassVar[int] = 1  # images that must be computed at a time
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
        "workers": WORKERS,
        "checkpoint_every": Range(1),
        "max_unreadable": Range(0),
    }

    model: str = ""
    """A model of this package or of timm."""
    model_options: ModelOptions = dataclasses.field(default_factory=dict)
    """Arguments of the model, such as: scope 7 content False."""
    weights: str | None = None
    """Weights to start from, a file or the folder of a run; random initialization if none. A head for other classes is
    re-initialized."""
    batch_norm_momentum: float | None = None
    """Share of a batch in the running statistics (1 minus TensorFlow's decay); the model's own if none."""
    freeze_batch_norm: float = 0.0
    """Last share of the steps, in which batch norm keeps to its running statistics, as in evaluation; for few images a
    step, whose own statistics differ from step to step."""
    sync_batch_norm: bool = False
    """Batch norm over the images of all GPUs at once."""
    epochs: int = 100
    """Passes over the training images."""
    batch_size: int = 64
    """Global batch size, over all processes."""
    micro_batch: int | None = None
    """Images per process at a time, with gradient accumulation over a step; as many as fit into memory if none."""
    optimizer: Optimizer = "sgd"
    """sgd has plain momentum; rmsprop is TensorFlow's, with decay 0.9."""
    learning_rate: float = 0.1
    """Peak, reached after the warm-up."""
    schedule: Schedule = "cosine"
    """From the peak: cosine to 0; staircase: times decay every decay_epochs; late_steps: times a tenth at 90, 95 and
    97.5% of the steps."""
    decay: float = 0.99
    """Of the staircase."""
    decay_epochs: float = 3.0
    """Length of its steps."""
    momentum: float = 0.9
    """Of sgd and rmsprop; the first beta of adamw."""
    weight_decay: float = 1e-4
    """Not on norms, biases and embedding tables."""
    warmup_epochs: float = 5.0
    """Linear from 0."""
    clip_gradient: float | None = None
    """Largest norm of the gradient."""
    ema_decay: float | None = None
    """Decay of the EMA of the weights, which is validated and saved; no EMA if none. It begins at
    (1 + steps) / (10 + steps)."""
    precision: Precision = "auto"
    """32-true, or autocast to bfloat16 or float16; auto is bf16-mixed on GPUs that have it, else 32-true."""
    compile: bool = False
    """Compile the model with torch.compile."""
    seed: int = 0
    """Of weights, hold-out, order and augmentation."""
    workers: int = 0
    """Processes that decode images; 0 for the training process itself. Does not change the result."""
    checkpoint_every: int = 200
    """Steps between checkpoints, beside one after each epoch."""
    max_unreadable: int = 1000
    """Images that may be skipped as they cannot be read; one more stops the run."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, annotation in types_of_fields(kind).items():
            check(name, getattr(self, name), annotation, self.RANGES.get(name))
        if self.micro_batch is not None and self.micro_batch < self.LEAST_PART:
            need = ", as batch norm needs" if self.LEAST_PART > 1 else ""
            raise InputError(f"micro_batch must be at least {self.LEAST_PART}{need}, got {self.micro_batch}")

    @property
    def pseudo_batch_size(self) -> int:
        """Images in a step beside the batch_size ones."""
        return 0

    def what_counts(self) -> Self:
        """The recipe with the default in every field in which a run may differ from the one it goes on from."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        free: dict[str, Any] = {name: defaults[name] for name in self.FREE}
        anywhere = {name: "" for name in self.GIVEN_COUNTS if getattr(self, name) is not None}
        return dataclasses.replace(self, **free | anywhere)

    def fields(self) -> dict[str, Any]:
        """The task and all fields."""
        return {"task": self.task} | dataclasses.asdict(self)

    def to_json(self) -> str:
        """The task and the fields as JSON, readable by `from_json`."""
        return json.dumps(self.fields(), indent=2)

    @classmethod
    def from_json(cls, content: bytes, source: str) -> Self:
        """The recipe in a file's content that `to_json` wrote; source names it in errors."""
        return cls.from_fields(read_fields(content, source), source)

    @classmethod
    def from_fields(cls, fields: dict[str, Any], source: str) -> Self:
        """A recipe from field values; fields it lacks have their defaults, but data and model must be there.

        Raises ValueError for another task's, for a name that no recipe has and for a value that does not fit; source
        names the file.
        """
        fields = renamed(fields, source)
        task = fields.pop("task", "classification")
        if task != cls.task:
            raise InputError(f"{source} is of a run of {task}, not of {cls.task}")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise InputError(f"{source} has the field {name!r}, which no recipe has{nearest(name, known)}")
        for name in ("data", "model"):
            if name not in fields:
                raise InputError(f"{source} must have the field {name!r}, and has not")
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
        try:
            return cls(**values)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Recipe(TrainingRecipe):
    """How to train a classifier, and on what; data and model must be given."""

    task: ClassVar[str] = "classification"
    PLACES: ClassVar[tuple[str, ...]] = ("data", "data_root", "weights", "pseudo_labels", "pseudo_images")
    TO_GIVE: ClassVar[tuple[str, ...]] = ("data", "weights", "pseudo_labels", "pseudo_images")
    FREE: ClassVar[tuple[str, ...]] = ("data", "data_root", *TrainingRecipe.FREE)
    GIVEN_COUNTS: ClassVar[tuple[str, ...]] = ("pseudo_labels", "pseudo_images")
    LEAST_PART: ClassVar[int] = 2  # as batch norm needs behind global pooling
    RANGES: ClassVar[dict[str, Range]] = TrainingRecipe.RANGES | {
        "batch_size": Range(2, 1_000_000),
        "image_size": Range(8, 10_000),
        "training_images": Range(1),
        "validation_share": VALIDATION_SHARE,
        "hold_out": Range(0, 0.9),
        "patience": Range(above=0),
        "pseudo_ratio": Range(above=0),
        **dict.fromkeys(("drop_path", "dropout", "label_smoothing", "flip"), Range(0, 1)),
        "std": Range(above=0),
        "crop_pct": Range(above=0, maximum=1),
    }

    data: str = ""
    """'digits'; a folder with a sub-folder of images a class, or train/ and val/ of such; a folder in torchvision's
    layout of FashionMNIST, MNIST or KMNIST; a .tar of such a folder; or a name timm's create_dataset knows, such as
    torch/cifar10."""
    data_root: str | None = None
    """Where a data set named for timm lies."""
    validation_share: float = 0.2
    """Share of the images held out, a class at a time, where the data has no validation part of its own."""
    hold_out: float = 0.0
    """Share of the training images kept from training, to look at meanwhile and, with patience, to choose weights by.
    The result is then measured on the validation part, which chose nothing."""
    patience: int | None = None
    """Stop after so many epochs without a better top-1, and take the best epoch's weights; never if none."""
    training_images: int | None = None
    """Train on so many of the training images, drawn with the seed in the shares of the classes; on all if none."""
    pseudo_labels: str | None = None
    """Folder of a selection of a teacher's labels (lambdanets pseudo-label select), to train on as well."""
    pseudo_images: str | None = None
    """The shards that they belong to, a folder or a URL."""
    pseudo_ratio: float = 1.0
    """Pseudo-labelled images in a step for each labelled one. Epochs are those of the labelled images."""
    pseudo_targets: Literal["soft", "hard"] = "soft"
    """Learn the teacher's distribution, or its most probable class."""
    drop_path: float = 0.0
    """Largest stochastic depth rate."""
    dropout: float = 0.0
    """Rate before the classifier."""
    image_size: int = 224
    """Side of the square the model sees, pixels."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for colour."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Of pixels in [0, 1], for normalization; one number, or one per channel."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation for normalization; one number, or one per channel."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Area of a random training crop over that of the image, as in torchvision's RandomResizedCrop."""
    ratio: tuple[float, float] = (0.75, 1.333)
    """Width over height of a random training crop."""
    crop_pct: float = 0.875
    """Center crop at evaluation: its side over that of the largest centered square."""
    flip: float = 0.5
    """Probability of a left-right flip in training."""
    rand_augment: str | None = None
    """timm's name of a RandAugment policy, such as rand-m10-n2."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """How images are resized."""
    label_smoothing: float = 0.1
    """Share of a label given to all classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.pseudo_labels is None) != (self.pseudo_images is None):
            raise InputError("pseudo_labels and pseudo_images must be given together, got one without the other")
        if self.pseudo_labels is not None and not self.pseudo_batch_size:
            raise InputError(
                f"pseudo_ratio must give a step of {self.batch_size} images a pseudo-labelled one at least, "
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
        """Of images in evaluation."""
        from lambdanets.data.transforms import Preprocessing  # help does not wait for timm

        return Preprocessing(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Preprocessing)})

    @property
    def pseudo_batch_size(self) -> int:
        """Pseudo-labelled images in a step."""
        return round(self.batch_size * self.pseudo_ratio) if self.pseudo_labels is not None else 0


def renamed(fields: dict[str, Any], source: str) -> dict[str, Any]:
    """Fields of a recipe under the names they have now. Raises InputError for one under both its names."""
    for before, now in _RENAMED.items():
        if before in fields and now in fields:
            raise InputError(f"{source} has the field {now!r} under its former name {before!r} too; remove one")
    return {_RENAMED.get(name, name): value for name, value in fields.items()}


def check_policy(policy: str | None) -> None:
    """Raise InputError for a name that timm takes for a RandAugment policy, and that is far beyond any policy's range.

    timm checks the rest of the name when it makes the policy.
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


def read_fields(content: bytes, source: str) -> dict[str, Any]:
    """The fields in a recipe's JSON; source names it in errors."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InputError(f"{source} must hold the fields of a recipe, got {fields!r}")
    return fields
