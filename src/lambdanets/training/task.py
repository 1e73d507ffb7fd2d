"""The interface that a task, such as classification or detection, implements for the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from torch import nn

from lambdanets.data.batches import Batches
from lambdanets.data.order import BatchSlice
from lambdanets.inference.model_card import ModelCard
from lambdanets.training.curves import Panels
from lambdanets.training.distributed import World
from lambdanets.training.memory import MemoryProbe
from lambdanets.training.module import TrainingModule
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.report import Result
from lambdanets.training.run_log import RunLog


class Task(ABC):
    """Data and model of a recipe, for the training loop in `run.py`.

    recipe: the recipe passed to `open`. The recipe passed to other methods has a micro_batch that fits into memory.
    """

    METRICS: ClassVar[tuple[str, ...]]  # columns of metrics.csv
    PANELS: ClassVar[Panels]  # panels of curves.png
    BEST_METRIC: ClassVar[str]  # metric that selects best.ckpt
    RESULT: ClassVar[type[Result]]  # fields of result.json

    recipe: TrainingRecipe
    model: nn.Module
    classes: tuple[str, ...]
    source: str  # description of the data, for messages
    fingerprint: str  # hash of the data: file names and labels
    training_images: int
    validation_images: int
    left_out: Mapping[str, int] = MappingProxyType({})  # number of files or annotations that are not used, by reason
    patience: int | None = None  # epochs without improvement until early stopping

    @classmethod
    def resolve(cls, recipe: Any) -> Any:
        """Return the recipe with missing fields filled in from its initial weights."""
        return recipe

    @classmethod
    @abstractmethod
    def open(cls, recipe: Any, world: World, resumed: bool) -> "Task":
        """Open the data and build the model. resumed: do not load initial weights, because there is a checkpoint."""

    @abstractmethod
    def probe(self) -> MemoryProbe:
        """Return the memory probe."""

    @abstractmethod
    def batches(self, recipe: Any, batch_slice: BatchSlice) -> tuple[Batches[Any], Batches[Any]]:
        """Return the training and validation batches."""

    @abstractmethod
    def card(self, recipe: Any) -> ModelCard:
        """Return the model card."""

    def description(self, recipe: Any) -> str:
        """Return the model card and the recipe as JSON, for weight files."""
        return self.card(recipe).to_json(recipe.fields())

    @abstractmethod
    def module(self, recipe: Any, steps_per_epoch: int, batch_slice: BatchSlice) -> TrainingModule:
        """Return the LightningModule."""

    def on_start(self, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to write
        """Write files into the run folder before training starts or resumes."""

    @abstractmethod
    def finish(self, recipe: Any, folder: Path, log: RunLog) -> dict[str, Any]:
        """Evaluate the trained model, write figures into the folder, and return the task's fields of result.json.

        The field "unreadable" is required: one message per unreadable image.
        """
