"""The classification task: data, model and final evaluation."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from lightning.pytorch import seed_everything
from torch import Tensor, nn

from lambdanets.data.datasets import Splits, hold_out, open_splits, subset
from lambdanets.data.loader import Batch, ImageBatches
from lambdanets.data.order import BatchSlice
from lambdanets.data.readable import check_readable
from lambdanets.device import best_device
from lambdanets.inference.classification import ClassificationEvaluator
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.figures import draw_predictions
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.training.batch_norm import prepare_batch_norm
from lambdanets.training.classification.loaders import make_batches
from lambdanets.training.classification.model import (
    ClassificationProbe,
    build_model,
    make_model_card,
    resolve_model_from_weights,
)
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.curves import Panels
from lambdanets.training.distributed import World
from lambdanets.training.report import Result
from lambdanets.training.run_log import RunLog
from lambdanets.training.task import Task


@dataclass(frozen=True)
class ClassificationResult(Result):
    top1: float


@dataclass
class ClassificationTask(Task):
    """Image classification."""

    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss", "top1")
    VALIDATION_METRICS: ClassVar[tuple[str, ...]] = ("loss", "top1")
    PANELS: ClassVar[Panels] = (("loss", ("loss",)), ("top-1", ("top1",)))
    BEST_METRIC: ClassVar[str] = "top1"
    RESULT: ClassVar[type[Result]] = ClassificationResult

    recipe: ClassificationRecipe
    splits: Splits
    model: nn.Module

    def __post_init__(self) -> None:
        self.classes = self.splits.classes
        self.source, self.left_out = self.splits.source, self.splits.left_out
        self.training_images, self.validation_images = len(self.splits.train), len(self.splits.validation)
        self.fingerprint = self.splits.fingerprint
        self.patience = self.recipe.patience

    @classmethod
    def resolve(cls, recipe: ClassificationRecipe) -> ClassificationRecipe:
        return resolve_model_from_weights(recipe)

    @classmethod
    def open(cls, recipe: ClassificationRecipe, world: World, resumed: bool) -> "ClassificationTask":
        splits = open_for_training(recipe)
        for split, images in (("training", splits.train), ("validation", splits.validation), ("test", splits.test)):
            if images is not None:
                check_readable(images.load, len(images), split, recipe.max_unreadable)
        seed_everything(recipe.seed, verbose=False)
        model = build_model(replace(recipe, weights=None) if resumed else recipe, splits.classes)
        return cls(recipe, splits, prepare_batch_norm(model, recipe, world.world_size))

    def probe(self) -> ClassificationProbe:
        return ClassificationProbe(self.recipe, len(self.classes))

    def training_batches(self, recipe: ClassificationRecipe, batch_slice: BatchSlice) -> ImageBatches:
        return make_batches(recipe, self.splits.train, batch_slice=batch_slice)

    def validation_batches(self, recipe: ClassificationRecipe, batch_slice: BatchSlice) -> ImageBatches:
        return self.evaluator(recipe).batches(recipe.batch_size, recipe.workers, batch_slice)

    def inputs(self, batch: Batch) -> tuple[Tensor]:
        return (batch.images,)

    def num_images(self, batch: Batch) -> int:
        return len(batch.labels)

    def losses(self, batch: Batch, recipe: ClassificationRecipe) -> dict[str, Tensor]:
        logits = self.model(batch.images).float()
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=recipe.label_smoothing, reduction="sum")
        return {"loss": loss, "top1": (logits.argmax(1) == batch.labels).sum()}

    def card(self, recipe: ClassificationRecipe) -> ClassifierCard:
        card = make_model_card(recipe, self.classes)
        return replace(card, source=replace(card.source, held_out=self.splits.held_out))

    def evaluator(self, recipe: ClassificationRecipe) -> ClassificationEvaluator:
        return ClassificationEvaluator(Classifier(self.model, self.card(recipe)), self.splits.validation)

    def finish(self, recipe: ClassificationRecipe, folder: Path, log: RunLog) -> dict[str, Any]:
        # Lightning moves the model to the CPU at the end
        classifier = Classifier(self.model.to(best_device()).eval(), self.card(recipe))
        evaluator = ClassificationEvaluator(classifier, self.splits.evaluated)
        evaluation = evaluator.evaluate(recipe.micro_batch or recipe.batch_size, recipe.workers)
        draw_predictions(evaluation, self.splits.evaluated, folder / "predictions.png")
        result: dict[str, Any] = {"top1": round(evaluation.top1, 6), "validation_images": len(evaluation.labels)}
        if self.splits.test is not None:
            held_out = log.values("val", "top1")
            result["held_out_top1"] = max(held_out) if recipe.patience else held_out[-1]
        return result | {"unreadable": evaluation.unreadable}


def open_for_training(recipe: ClassificationRecipe) -> Splits:
    """Return the recipe's data splits, with its hold-out and its subset of training images."""
    splits = open_splits(recipe.data, root=recipe.data_root, validation_share=recipe.validation_share, seed=recipe.seed)
    return subset(hold_out(splits, recipe.hold_out, recipe.seed), recipe.training_images, recipe.seed)
