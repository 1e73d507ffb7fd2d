"""LightningModule of a classifier: loss and metrics."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.data.loader import Batch
from lambdanets.data.order import BatchSlice
from lambdanets.errors import InputError
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.distributed import all_reduce_sum
from lambdanets.training.module import TrainingModule


class Classification(TrainingModule):
    """Trains a classifier with a recipe."""

    SUMS: ClassVar[tuple[str, ...]] = ("loss", "top1")
    recipe: ClassificationRecipe

    def __init__(
        self,
        model: nn.Module,
        recipe: ClassificationRecipe,
        num_classes: int,
        steps_per_epoch: int,
        description: str,
        batch_slice: BatchSlice | None = None,
    ) -> None:
        super().__init__(model, recipe, steps_per_epoch, description, batch_slice)
        self.num_classes = num_classes
        self._sums = (0.0, 0.0, 0.0)  # over the validation images: loss, correct predictions, number of images

    def num_images(self, batch: Batch) -> int:
        return len(batch.labels)

    def inputs(self, batch: Batch) -> tuple[Tensor]:
        return (batch.images,)

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.model(batch.images).float()
        return {"loss": self._loss(logits, batch), "top1": (logits.argmax(1) == batch.labels).sum()}

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy, summed over images. Label smoothing applies to hard labels only."""
        smoothing = self.recipe.label_smoothing
        if batch.targets is None or batch.soft is None:
            return F.cross_entropy(logits, batch.labels, label_smoothing=smoothing, reduction="sum")
        if batch.targets.shape[1] != self.num_classes:
            raise InputError(f"pseudo-labels must have {self.num_classes} classes, got {batch.targets.shape[1]}")
        smoothed = batch.targets * (1 - smoothing) + smoothing / self.num_classes
        return F.cross_entropy(logits, torch.where(batch.soft[:, None], batch.targets, smoothed), reduction="sum")

    def on_validation_epoch_start(self) -> None:
        self._sums = (0.0, 0.0, 0.0)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.labels):
            logits = self.model(batch.images).float()
            loss = F.cross_entropy(logits, batch.labels, reduction="sum").item()
            correct = (logits.argmax(1) == batch.labels).sum().item()
            sums = zip(self._sums, (loss, correct, len(batch.labels)), strict=True)
            self._sums = tuple(total + value for total, value in sums)

    def on_validation_epoch_end(self) -> None:
        loss, correct, images = all_reduce_sum(*self._sums)
        self.validation_metrics = {}
        if images:  # has the same value on all ranks
            self.validation_metrics = {"loss": loss / images, "top1": correct / images}
            self.log("top1", correct / images, prog_bar=True, logger=False)

    def format_validation_metrics(self) -> str:
        return f"val loss {self.validation_metrics['loss']:.3f}  top-1 {self.validation_metrics['top1']:.4f}"
