"""The hyperparameters that all tasks have. Each task adds its own, in one flat frozen dataclass per task."""

import dataclasses
import json
from typing import Any, ClassVar, Literal, Self

from lambdanets.bounds import WORKERS_RANGE, Range, convert, field_types
from lambdanets.errors import InputError, nearest_hint
from lambdanets.records import parse_json, reraise_as_input_error

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
Optimizer = Literal["sgd", "rmsprop", "adamw"]
Schedule = Literal["cosine", "staircase", "late_steps"]
ModelOptions = dict[str, bool | int | float | str]


@dataclasses.dataclass(frozen=True)
class TrainingRecipe:
    """Hyperparameters that all tasks have."""

    task: ClassVar[str]
    # fields that are paths or URLs; if a field in REQUIRED is "" in the recipe, the user must set it
    PATHS: ClassVar[tuple[str, ...]] = ("data", "weights")
    REQUIRED: ClassVar[tuple[str, ...]] = PATHS
    # fields that may be changed when a run is resumed, because they do not change the result except for rounding
    CHANGEABLE: ClassVar[tuple[str, ...]] = (
        "weights",
        "workers",
        "checkpoint_every",
        "max_unreadable",
        "micro_batch",
        "compile",
    )
    MIN_MICRO_BATCH: ClassVar[int] = 1
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
        "seed": Range(0, 2**32 - 1),  # of NumPy
        "workers": WORKERS_RANGE,
        "checkpoint_every": Range(1),
        "max_unreadable": Range(0),
    }

    data: str = ""
    """Training data: a folder, file, URL or dataset name."""
    model: str = ""
    """Model name, from lambdanets or timm."""
    model_options: ModelOptions = dataclasses.field(default_factory=dict)
    """Keyword arguments of the model as pairs of name and value, for example: scope 7 content False."""
    weights: str | None = None
    """File or run folder with initial weights. If none, weights are random. A head for other classes is replaced."""
    epochs: int = 100
    """Number of epochs."""
    batch_size: int = 64
    """Global batch size: images per step over all ranks."""
    micro_batch: int | None = None
    """Images per forward pass on a rank, with gradient accumulation. If none, as many as fit into memory."""
    learning_rate: float = 0.1
    """Peak learning rate, reached after the warm-up. It is not scaled with the batch size."""
    warmup_epochs: float = 5.0
    """Epochs of linear learning rate warm-up from 0."""
    schedule: Schedule = "cosine"
    """cosine: to 0; staircase: times --decay every --decay-epochs; late_steps: times 0.1 at 90, 95, 97.5% of steps."""
    decay: float = 0.99
    """Factor of the learning rate in the staircase schedule."""
    decay_epochs: float = 3.0
    """Number of epochs between decays in the staircase schedule."""
    optimizer: Optimizer = "sgd"
    """sgd: with momentum, without Nesterov; rmsprop: as in TensorFlow, with decay 0.9; adamw."""
    momentum: float = 0.9
    """Momentum of sgd and rmsprop, or beta1 of adamw."""
    weight_decay: float = 1e-4
    """Weight decay, except for norm layers, biases and embedding tables."""
    clip_gradient: float | None = None
    """Maximum norm of the gradient. If none, gradients are not clipped."""
    ema_decay: float | None = None
    """Decay of the EMA of the weights, at most (1 + step) / (10 + step). If none, no EMA; if set, the EMA is saved."""
    batch_norm_momentum: float | None = None
    """Batch norm momentum in PyTorch's definition (1 - TensorFlow's decay). If none, the model's own value is used."""
    freeze_batch_norm: float = 0.0
    """Put batch norm into eval mode for this last fraction of the steps. Helps with small batches."""
    sync_batch_norm: bool = False
    """Synchronize batch norm across GPUs."""
    precision: Precision = "auto"
    """32-true: float32; bf16-mixed, 16-mixed: autocast; auto: bf16-mixed on GPUs that support it, otherwise 32-true."""
    compile: bool = False
    """Compile the model with torch.compile."""
    seed: int = 0
    """Random seed for initialization, data splits, data order and augmentation."""
    workers: int = 0
    """Number of data loading processes; 0 loads in the main process. Does not change the result."""
    checkpoint_every: int = 200
    """Number of steps between checkpoints. A checkpoint is also written after each epoch."""
    max_unreadable: int = 1000
    """Skip up to this number of unreadable images with a warning; stop if there are more."""

    def __post_init__(self) -> None:
        recipe_class: Any = type(self)
        for name, annotation in field_types(recipe_class).items():
            object.__setattr__(self, name, convert(getattr(self, name), annotation, name, self.RANGES.get(name)))
        if self.micro_batch is not None and self.micro_batch < self.MIN_MICRO_BATCH:
            reason = " for batch norm" if self.MIN_MICRO_BATCH > 1 else ""
            raise InputError(f"micro_batch must be at least {self.MIN_MICRO_BATCH}{reason}, got {self.micro_batch}")

    def step_sizes(self, num_images: int) -> tuple[int, ...]:
        """Return the number of images per step, from each set of training images. num_images: in the first set."""
        return (min(self.batch_size, num_images),)

    def without_changeable_fields(self) -> Self:
        """Return the recipe with default values in all fields that may be changed when a run is resumed."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        changes: dict[str, Any] = {name: defaults[name] for name in self.CHANGEABLE}
        return dataclasses.replace(self, **changes)

    def fields(self) -> dict[str, Any]:
        """Return a dict of the task and all fields."""
        return {"task": self.task} | dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the task and all fields as JSON, which `from_json` reads."""
        return json.dumps(self.fields(), indent=2)

    @classmethod
    def from_json(cls, content: bytes, source: str) -> Self:
        """Read a recipe from the JSON that `to_json` returns. source: name of the file, for error messages."""
        return cls.from_fields(parse_json(content, dict[str, Any], f"{source} is not a valid recipe"), source)

    @classmethod
    def from_fields(cls, fields: dict[str, Any], source: str) -> Self:
        """Build a recipe from the values of its fields. data and model are required; other fields have defaults.

        source: name of the file, for error messages.

        Raises ValueError for another task, an unknown field, or a value of the wrong type or out of range.
        """
        fields = dict(fields)
        task = fields.pop("task", "classification")
        if task != cls.task:
            raise InputError(f"{source} must be a {cls.task} recipe, got a {task} recipe")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise InputError(f"{source} has the unknown field {name!r}{nearest_hint(name, known)}")
        for name in ("data", "model"):
            if name not in fields:
                raise InputError(f"{source} must have the field {name!r}, got none")
        with reraise_as_input_error(source):
            return convert(fields, cls)
