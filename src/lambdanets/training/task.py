"""The interface that a task, such as classification or detection, implements for the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from lambdanets.data.batches import Batches
from lambdanets.data.images import first_readable
from lambdanets.data.order import BatchSlice
from lambdanets.inference.model_card import ModelCard, make_card
from lambdanets.inference.predictor import Predictor
from lambdanets.records import shared_fields
from lambdanets.registry import predictor_of


class Task(ABC):
    """Data, model and losses of a recipe, for the training loop in `run.py`.

    `__init__` opens the data and sets the attributes without a default below. `run` then sets `model`, and the
    micro_batch of `recipe` to one that fits into memory.
    """

    # Columns of metrics.csv: those that `losses` returns, with "loss", which is minimized, and those of
    # `Evaluation.metrics`.
    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss",)
    VALIDATION_METRICS: ClassVar[tuple[str, ...]]
    BEST_METRIC: ClassVar[str]  # validation metric that selects best.ckpt
    EVALUATION_BATCH_SIZE: ClassVar[int | None] = None  # images per forward pass; None: as in training

    recipe: Any
    model: Any
    training: Any  # a set of images, with `load`, which may raise UnreadableImage
    validation: Any
    test: Any = None  # if there is one, the trained model is evaluated on it, and not on `validation`
    classes: tuple[str, ...]
    source: str  # description of the data, for messages
    fingerprint: str  # hash of the data: classes, file names and labels
    left_out: Mapping[str, int] = MappingProxyType({})  # number of files or annotations that are not used, by reason
    findings: Mapping[str, Any] = MappingProxyType({})  # `AnnotationProblems` by set, printed and in findings.json
    patience: int | None = None  # epochs without improvement until early stopping
    initial_weights: dict[str, str] | None = None  # name and hash of their file
    checkpoint: Path | None = None  # from which the run resumes
    position: dict[str, Any] | None = None  # of the checkpoint in the training data

    def __init__(self, recipe: Any) -> None:
        self.recipe = recipe

    @classmethod
    def resolve(cls, recipe: Any) -> Any:
        """Return the recipe with missing fields filled in from its initial weights."""
        return recipe

    @abstractmethod
    def batches(self, **options: Any) -> Batches:
        """Return the batches of `training`, augmented. options: arguments of `Batches`."""

    def training_batches(self, batch_slice: BatchSlice) -> Batches:
        """Return the batches that a rank trains on."""
        recipe = self.recipe
        return self.batches(
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            training=True,
            workers=recipe.workers,
            batch_slice=batch_slice,
        )

    def largest_example(self, batches: Batches) -> Any:
        """Return the loaded training image that needs the most memory, or another where all need the same."""
        return first_readable(batches.load, range(len(self.training)), "training", self.recipe.max_unreadable)

    def num_images(self, batch: Any) -> int:
        """Return the number of images of a batch that can be trained on; 0 if batch norm needs more than one image."""
        return len(batch.images)

    @abstractmethod
    def losses(self, batch: Any) -> dict[str, Tensor]:
        """Return the TRAINING_METRICS of a batch, each summed over its images."""

    def card(self) -> ModelCard:
        """Return the model card, whose fields are those of the recipe and attributes of the task."""
        card_type = predictor_of(self.recipe.task).card_type
        return make_card(card_type, self.recipe, **shared_fields(self, card_type))

    def evaluator(self, images: Any) -> Predictor:
        """Return the predictor that evaluates the model on `validation` or `test`."""
        return predictor_of(self.recipe.task)(self.model, self.card(), images)

    def provenance(self) -> dict[str, Any]:
        """Return the fields of result.json about the data."""
        return {}
