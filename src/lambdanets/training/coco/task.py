"""The base class of the tasks on COCO-format annotations."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import seed_everything

from lambdanets.data.batches import Batches
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import AnnotatedBatch
from lambdanets.data.coco.sets import report_problems
from lambdanets.data.order import BatchSlice
from lambdanets.data.readable import check_readable
from lambdanets.models.weights import find_weights
from lambdanets.training.batch_norm import prepare_batch_norm
from lambdanets.training.coco.data import open_datasets, write_problems
from lambdanets.training.coco.recipe import CocoRecipe
from lambdanets.training.distributed import World
from lambdanets.training.task import Task


@dataclass
class CocoTask(Task):
    """Opens the data, builds the model, and identifies data and initial weights in the result."""

    recipe: CocoRecipe
    training: AnnotatedImages
    validation: AnnotatedImages
    source: str
    model: Any
    initial_weights: dict[str, str] | None = None  # of a resumed run, they are in the checkpoint

    def __post_init__(self) -> None:
        categories = self.training.annotations.categories
        self.classes = tuple(category.name for category in categories)
        self.category_ids = tuple(category.id for category in categories)
        self.training_images, self.validation_images = len(self.training), len(self.validation)
        self.left_out = self.training.problems.left_out + self.validation.problems.left_out
        fingerprints = self.training.fingerprint + self.validation.fingerprint
        self.fingerprint = hashlib.sha256(fingerprints.encode()).hexdigest()

    @classmethod
    def open(cls, recipe: Any, world: World, resumed: bool) -> "CocoTask":
        training, validation, source = open_datasets(recipe)
        if world.is_rank_zero:
            report_problems(training=training, validation=validation)
        for split, images in (("training", training), ("validation", validation)):
            check_readable(images.load, len(images), split, recipe.max_unreadable)
        seed_everything(recipe.seed, verbose=False)
        classes = [category.name for category in training.annotations.categories]
        model = cls.build(replace(recipe, weights=None) if resumed else recipe, classes)
        prepare_batch_norm(model, recipe, world.world_size)
        initial_weights = None if resumed or recipe.weights is None else _identity(recipe.weights)
        return cls(recipe, training, validation, source, model, initial_weights)

    @classmethod
    @abstractmethod
    def build(cls, recipe: Any, classes: Sequence[str]) -> Any:
        """Build the model for the names of the categories, and load the recipe's initial weights, if any."""

    def num_images(self, batch: AnnotatedBatch) -> int:
        return len(batch.images)

    def validation_batches(self, recipe: Any, batch_slice: BatchSlice) -> Batches[AnnotatedBatch]:
        # one image at a time, so that rounding does not depend on the world size
        return self.evaluator(recipe).batches(1, recipe.workers, batch_slice)

    def on_start(self, folder: Path) -> None:
        write_problems(folder, training=self.training, validation=self.validation)

    def provenance(self, recipe: CocoRecipe) -> dict[str, Any]:
        """Return the fields of result.json about recipe, data and initial weights."""
        return {
            "dropped": {
                "training": self.training.problems.counts(),
                "validation": self.validation.problems.counts(),
            },
            "recipe": recipe.without_changeable_fields().fields(),
            "training_data": {
                "name": recipe.data,
                # the hash of the whole set, because a subset depends on the seed
                "sha256": self.training.parent_fingerprint or self.training.fingerprint,
            },
            "validation_data": {
                "name": recipe.validation_data or recipe.data,
                "sha256": self.validation.fingerprint,
            },
            "initial_weights": self.initial_weights,
        }


def _identity(weights: str) -> dict[str, str]:
    """Return the SHA-256 of initial weights, and their name without the path to it."""
    path, source = Path(weights), find_weights(weights)
    name = str(Path(path.name, source.file.relative_to(path))) if source.file.is_relative_to(path) else weights
    return {"name": name, "sha256": source.sha256()}
