"""What a kind of training is made of: its data, model and batches, its measures, and what a finished run leaves."""

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from lambdanets.data.batches import Batches
from lambdanets.data.order import BatchSlice
from lambdanets.errors import InputError
from lambdanets.records import parse_json
from lambdanets.training.curves import Panels
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.history import History
from lambdanets.training.memory import MemoryProbe
from lambdanets.training.module import TrainingModule
from lambdanets.training.processes import Processes
from lambdanets.training.recipe import Recipe, TrainingRecipe
from lambdanets.training.report import Result

_RECIPES: dict[str, type[TrainingRecipe]] = {recipe.task: recipe for recipe in (Recipe, DetectionRecipe)}
# Imported on first use: a classifier needs nothing that reads annotations.
_TASKS = {
    "classification": "lambdanets.training.classification.task:ClassificationTask",
    "detection": "lambdanets.training.detection.task:DetectionTask",
}


class Task(ABC):
    """A recipe's data, opened, and its model, built, ready to be trained by `run.py`, which knows no more of them.

    recipe: what `opened` was given; methods that take one are given it with the parts of a step filled in.
    """

    METRICS: ClassVar[tuple[str, ...]]  # columns of metrics.csv
    PANELS: ClassVar[Panels]  # of curves.png
    BEST: ClassVar[str]  # the metric by which best.ckpt is the best
    RESULT: ClassVar[type[Result]]  # what result.json is read for

    recipe: TrainingRecipe
    model: nn.Module
    classes: tuple[str, ...]
    source: str  # of the data, in words
    fingerprint: str  # of the data: names and what is known of each image
    training_images: int
    validation_images: int
    patience: int | None = None  # epochs without a better measure, after which the best weights are taken

    @classmethod
    def given(cls, recipe: Any) -> Any:
        """The recipe with what follows from its weights filled in. Raises InputError for what it leaves to be given."""
        return recipe

    @classmethod
    @abstractmethod
    def opened(cls, recipe: Any, these: Processes, begun: bool) -> "Task":
        """Open the data and build the model. A run that has begun takes its weights from its checkpoint."""

    @abstractmethod
    def probe(self) -> MemoryProbe:
        """A step on made-up images."""

    @abstractmethod
    def batches(self, recipe: Any, batch_slice: BatchSlice) -> tuple[Batches[Any], Batches[Any]]:
        """Of training and of validation."""

    @abstractmethod
    def description(self, recipe: Any) -> str:
        """What files of weights say beside them."""

    @abstractmethod
    def module(self, recipe: Any, steps_per_epoch: int, batch_slice: BatchSlice) -> TrainingModule:
        """The model in training."""

    def begin(self, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to write
        """Write what is known before training into the run's folder, also where the run goes on."""

    @abstractmethod
    def conclude(self, recipe: Any, folder: Path, history: History) -> dict[str, Any]:
        """Measure the trained model, draw pictures into the folder, and return the task's part of result.json.

        It has "unreadable", a list of sentences, among it.
        """


def task_of(name: str) -> type[Task]:
    """The kind of training of that name."""
    module, _, kind = _TASKS[name].partition(":")
    return getattr(importlib.import_module(module), kind)


def read_recipe(path: Path) -> TrainingRecipe:
    """The recipe of any task in a file that `TrainingRecipe.to_json` wrote. Raises InputError for anything else."""
    fields = parse_json(path.read_bytes(), dict[str, Any], f"{path} is no recipe")
    name = fields.get("task", "classification")
    if not isinstance(name, str) or name not in _RECIPES:
        raise InputError(f"{path} must have a task that is one of {', '.join(_RECIPES)}, got {name!r}")
    return _RECIPES[name].from_fields(fields, str(path))
