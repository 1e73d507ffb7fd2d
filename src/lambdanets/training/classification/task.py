"""The classification task: data, model and final evaluation."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import seed_everything
from torch import nn

from lambdanets.data.datasets import Splits, hold_out, open_splits, subset
from lambdanets.data.loader import ImageBatches
from lambdanets.data.order import BatchSlice
from lambdanets.data.readable import check_readable
from lambdanets.device import best_device
from lambdanets.inference.classification import predict_set
from lambdanets.inference.classification_figures import draw_predictions
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.training.batch_norm import prepare_batch_norm
from lambdanets.training.classification.loaders import make_batches
from lambdanets.training.classification.model import (
    ClassificationProbe,
    build_model,
    make_model_card,
    resolve_model_from_weights,
)
from lambdanets.training.classification.module import Classification
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.curves import Panels
from lambdanets.training.distributed import World
from lambdanets.training.metrics_log import MetricsLog
from lambdanets.training.report import Result
from lambdanets.training.task import Task


class ClassificationResult(Result):
    top1: float


@dataclass
class ClassificationTask(Task):
    """Image classification."""

    METRICS: ClassVar[tuple[str, ...]] = ("loss", "top1")
    PANELS: ClassVar[Panels] = (("loss", ("loss",)), ("top-1", ("top1",)))
    BEST_METRIC: ClassVar[str] = "top1"
    RESULT: ClassVar[type[Result]] = ClassificationResult
    MODULE: ClassVar[type[Classification]] = Classification

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

    def batches(self, recipe: ClassificationRecipe, batch_slice: BatchSlice) -> tuple[ImageBatches, ImageBatches]:
        training = make_batches(recipe, self.splits.train, training=True, batch_slice=batch_slice)
        return training, make_batches(recipe, self.splits.validation, training=False, batch_slice=batch_slice)

    def card(self, recipe: ClassificationRecipe) -> ClassifierCard:
        card = make_model_card(recipe, self.classes)
        return replace(card, source=replace(card.source, held_out=self.splits.held_out))

    def module(self, recipe: ClassificationRecipe, steps_per_epoch: int, batch_slice: BatchSlice) -> Classification:
        return self.MODULE(self.model, recipe, steps_per_epoch, self.description(recipe), batch_slice)

    def finish(self, recipe: ClassificationRecipe, folder: Path, log: MetricsLog) -> dict[str, Any]:
        # Lightning moves the model to the CPU at the end
        classifier = Classifier(self.model.to(best_device()).eval(), self.card(recipe))
        evaluated = self.splits.evaluated
        predictions = predict_set(classifier, evaluated, recipe.micro_batch or recipe.batch_size, recipe.workers)
        draw_predictions(predictions, evaluated, folder / "predictions.png")
        result: dict[str, Any] = {"top1": round(predictions.top1, 6), "validation_images": len(predictions.labels)}
        if self.splits.test is not None:
            held_out = log.values("val", "top1")
            result["held_out_top1"] = max(held_out) if recipe.patience else held_out[-1]
        return result | {"unreadable": predictions.unreadable}


def open_for_training(recipe: ClassificationRecipe) -> Splits:
    """Return the recipe's data splits, with its hold-out and its subset of training images."""
    splits = open_splits(recipe.data, root=recipe.data_root, validation_share=recipe.validation_share, seed=recipe.seed)
    return subset(hold_out(splits, recipe.hold_out, recipe.seed), recipe.training_images, recipe.seed)
