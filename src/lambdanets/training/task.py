"""The interface that a task, such as classification or detection, implements for the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from lambdanets.data.batches import Batches
from lambdanets.data.order import BatchSlice
from lambdanets.inference.evaluator import Evaluator
from lambdanets.inference.model_card import ModelCard
from lambdanets.training.curves import Panels
from lambdanets.training.distributed import World
from lambdanets.training.memory import MemoryProbe
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.report import Result

if TYPE_CHECKING:
    from lambdanets.training.run_log import RunLog  # imports this module


class Task(ABC):
    """Data and model of a recipe, for the training loop in `run.py`.

    recipe: the recipe passed to `open`. The recipe passed to other methods has a micro_batch that
    fits into memory.
    """

    # Columns of metrics.csv: those that `losses` returns, with "loss", which is minimized, and those of
    # `Evaluation.metrics`.
    TRAINING_METRICS: ClassVar[tuple[str, ...]]
    VALIDATION_METRICS: ClassVar[tuple[str, ...]]
    PANELS: ClassVar[Panels]  # panels of curves.png
    BEST_METRIC: ClassVar[str]  # validation metric that selects best.ckpt
    RESULT: ClassVar[type[Result]]  # fields of result.json

    recipe: TrainingRecipe
    model: Any
    classes: tuple[str, ...]
    source: str  # description of the data, for messages
    fingerprint: str  # hash of the data: file names and labels
    training_images: int
    validation_images: int
    left_out: Mapping[str, int] = MappingProxyType({})  # number of files or annotations that are not used, by reason
    patience: int | None = None  # epochs without improvement until early stopping
    initial_weights: dict[str, str] | None = None  # name and hash of their file

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
    def training_batches(self, recipe: Any, batch_slice: BatchSlice) -> Batches[Any]:
        """Return the training batches."""

    @abstractmethod
    def validation_batches(self, recipe: Any, batch_slice: BatchSlice) -> Batches[Any]:
        """Return the batches of the validation images, for `evaluator`."""

    @abstractmethod
    def inputs(self, batch: Any) -> tuple[Any, ...]:
        """Return the arguments that the model is called with for a batch."""

    @abstractmethod
    def num_images(self, batch: Any) -> int:
        """Return the number of images of a batch that can be trained on."""

    @abstractmethod
    def losses(self, batch: Any, recipe: Any) -> dict[str, Tensor]:
        """Return the TRAINING_METRICS of a batch, each summed over its images."""

    @abstractmethod
    def card(self, recipe: Any) -> ModelCard:
        """Return the model card."""

    @abstractmethod
    def evaluator(self, recipe: Any) -> Evaluator:
        """Return the evaluator of the model on the validation images."""

    def on_start(self, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to write
        """Write files into the run folder before training starts or resumes."""

    @abstractmethod
    def finish(self, recipe: Any, folder: Path, log: "RunLog") -> dict[str, Any]:
        """Evaluate the trained model, write figures into the folder, and return the task's fields of result.json.

        The field "unreadable" is required: one message per unreadable image.
        """
