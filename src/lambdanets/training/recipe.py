"""The hyperparameters that all tasks have, to which each adds its own; and recipes of any task in JSON files."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from lambdanets.errors import InputError
from lambdanets.inference.model_card import Architecture
from lambdanets.records import Count, Decay, Seed, Workers, parse_json, record, reraise_as_input_error
from lambdanets.registry import TASKS, task_entry

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
Optimizer = Literal["sgd", "rmsprop", "adamw"]  # keys of OPTIMIZERS
Schedule = Literal["cosine", "staircase", "late_steps"]  # of make_schedule in module.py
NonNegative = Annotated[float, Field(ge=0, le=1e30)]  # larger ones overflow in float32

# Names in timm: its "sgd" has Nesterov momentum and "momentum" has not; its "rmsprop" is PyTorch's, not TensorFlow's.
OPTIMIZERS = {"sgd": "momentum", "rmsprop": "rmsproptf", "adamw": "adamw"}


@record
class TrainingRecipe(Architecture):
    """Hyperparameters that all tasks have."""

    task: ClassVar[str]
    # fields that are paths or URLs; those that are "" in the recipe, the user must set
    PATHS: ClassVar[tuple[str, ...]] = ("data", "weights")
    # fields that do not change the result except for rounding; only some tasks have `compile`
    CHANGEABLE: ClassVar[tuple[str, ...]] = ("workers", "checkpoint_every", "max_unreadable", "micro_batch", "compile")

    data: str = ""
    """Training data: a folder, file, URL or dataset name."""
    weights: str | None = None
    """Initial weights: file, run or hub folder, or name such as cifar10; random if none. Other classes: a new head."""
    epochs: Count = 100
    """Number of epochs."""
    batch_size: Count = 64
    """Global batch size: images per step over all ranks."""
    micro_batch: Count | None = None
    """Images per forward pass on a rank, with gradient accumulation. If none, as many as fit into memory."""
    learning_rate: NonNegative = 0.1
    """Peak learning rate, reached after the warm-up. It is not scaled with the batch size."""
    warmup_epochs: NonNegative = 5.0
    """Epochs of linear learning rate warm-up from 0."""
    schedule: Schedule = "cosine"
    """cosine: to 0; staircase: times --decay every --decay-epochs; late_steps: times 0.1 at 90, 95, 97.5% of steps."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Factor of the learning rate in the staircase schedule."""
    decay_epochs: PositiveFloat = 3.0
    """Number of epochs between decays in the staircase schedule."""
    optimizer: Optimizer = "sgd"
    """sgd: with momentum, without Nesterov; rmsprop: as in TensorFlow, with decay 0.9; adamw."""
    momentum: Decay = 0.9
    """Momentum of sgd and rmsprop, or beta1 of adamw."""
    weight_decay: NonNegative = 1e-4
    """Weight decay, except for norm layers, biases and embedding tables."""
    clip_gradient: PositiveFloat | None = None
    """Maximum norm of the gradient. If none, gradients are not clipped."""
    ema_decay: Decay | None = None
    """Decay of the EMA of the weights, at most (1 + step) / (10 + step). If none, no EMA; if set, the EMA is saved."""
    batch_norm_momentum: Annotated[float, Field(gt=0, le=1)] | None = None
    """Batch norm momentum in PyTorch's definition (1 - TensorFlow's decay). If none, the model's own value is used."""
    freeze_batch_norm: Decay = 0.0
    """Put batch norm into eval mode for this last fraction of the steps. Helps with small batches."""
    sync_batch_norm: bool = False
    """Synchronize batch norm across GPUs."""
    precision: Precision = "auto"
    """32-true: float32; bf16-mixed, 16-mixed: autocast; auto: bf16-mixed on GPUs that support it, otherwise 32-true."""
    seed: Seed = 0
    """Random seed for initialization, data splits, data order and augmentation."""
    workers: Workers = 0
    """Number of data loading processes; 0 loads in the main process. Does not change the result."""
    checkpoint_every: PositiveInt = 200
    """Number of steps between checkpoints. A checkpoint is also written after each epoch."""
    max_unreadable: NonNegativeInt = 1000
    """Skip up to this number of unreadable images with a warning; stop if there are more."""

    def step_sizes(self, num_images: int) -> tuple[int, ...]:
        """Return the number of images per step, from each set of training images. num_images: in the first set."""
        return (min(self.batch_size, num_images),)

    def fields(self) -> dict[str, Any]:
        """Return a dict of the task and all fields."""
        return {"task": self.task} | dataclasses.asdict(self)

    def identity(self, *more: str) -> dict[str, Any]:
        """Return the task and the fields that determine the result, with `more`. A resumed run may change others."""
        omitted = {*self.PATHS, *self.CHANGEABLE} - {*more}
        return {name: value for name, value in self.fields().items() if name not in omitted}


def task_class(recipe: TrainingRecipe) -> Any:
    """Return the Task class for a recipe."""
    return resolve_name(TASKS[recipe.task].implementation)


def extended_recipe(recipe: TrainingRecipe, options: Iterable[str]) -> TrainingRecipe:
    """Return the recipe as one of a task that extends its task by the fields `options`, such as pseudo_labels."""
    for kind in (resolve_name(entry.recipe) for entry in TASKS.values()):
        if issubclass(kind, type(recipe)):
            names = {field.name for field in dataclasses.fields(kind)} - vars(recipe).keys()
            if not names.isdisjoint(options):
                return kind(**vars(recipe))
    return recipe


def read_recipe(path: Path) -> TrainingRecipe:
    """Read the recipe of a run, of any task, from a JSON file. Raises InputError if it is missing or invalid."""
    if not path.is_file():
        got = f"one without {path.name}" if path.parent.exists() else "none of this name"
        raise InputError(f"{path.parent} must be a run folder, got {got}")
    return parse_recipe(parse_json(path.read_bytes(), dict[str, Any], f"{path} is not a valid recipe"), path)


def parse_recipe(fields: dict[str, Any], source: Path) -> TrainingRecipe:
    """Build a recipe from its task and fields. source: their file, for error messages.

    Raises InputError for an unknown task, an unknown field, or a value of the wrong type or out of range.
    """
    recipe_class = resolve_name(task_entry(fields.get("task"), source).recipe)
    with reraise_as_input_error(str(source)):
        return recipe_class(**{name: value for name, value in fields.items() if name != "task"})
