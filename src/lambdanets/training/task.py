"""The interface of a task, such as classification or detection, to the training loop."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from lambdanets.data.batches import Batches
from lambdanets.data.order import BatchSlice
from lambdanets.training.curves import Panels
from lambdanets.training.distributed import World
from lambdanets.training.memory import MemoryProbe
from lambdanets.training.metrics_log import MetricsLog
from lambdanets.training.module import TrainingModule
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.report import Result


class Task(ABC):
    """Data and model of a recipe, for the training loop in `run.py`.

    recipe: as passed to `open`; methods with a recipe argument get it with micro_batch resolved.
    """

    METRICS: ClassVar[tuple[str, ...]]  # columns of metrics.csv
    PANELS: ClassVar[Panels]  # of curves.png
    BEST: ClassVar[str]  # the metric of best.ckpt
    RESULT: ClassVar[type[Result]]  # the task's fields of result.json

    recipe: TrainingRecipe
    model: nn.Module
    classes: tuple[str, ...]
    source: str  # of the data, for messages
    fingerprint: str  # hash of the data: file names and labels
    training_images: int
    validation_images: int
    patience: int | None = None  # of early stopping, in epochs

    @classmethod
    def resolve(cls, recipe: Any) -> Any:
        """The recipe with the fields filled in that follow from its initial weights."""
        return recipe

    @classmethod
    @abstractmethod
    def open(cls, recipe: Any, world: World, resumed: bool) -> "Task":
        """Open the data and build the model; a resumed run has a checkpoint and needs no initial weights."""

    @abstractmethod
    def probe(self) -> MemoryProbe:
        """The memory probe."""

    @abstractmethod
    def batches(self, recipe: Any, batch_slice: BatchSlice) -> tuple[Batches[Any], Batches[Any]]:
        """Training and validation batches."""

    @abstractmethod
    def description(self, recipe: Any) -> str:
        """Model card and recipe as JSON, for weight files."""

    @abstractmethod
    def module(self, recipe: Any, steps_per_epoch: int, batch_slice: BatchSlice) -> TrainingModule:
        """The LightningModule."""

    def on_start(self, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to write
        """Write files into the run folder before training starts or resumes."""

    @abstractmethod
    def finish(self, recipe: Any, folder: Path, log: MetricsLog) -> dict[str, Any]:
        """Evaluate the trained model, draw figures into the folder, and return the task's fields of result.json.

        One of them is "unreadable", a list of messages.
        """
