"""LightningModule of a classifier: loss and metrics."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from lambdanets.data.loader import Batch
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.distributed import all_reduce_sum
from lambdanets.training.module import TrainingModule


class Classification(TrainingModule):
    """Trains a classifier with a recipe."""

    SUMS: ClassVar[tuple[str, ...]] = ("loss", "top1")
    recipe: ClassificationRecipe

    _sums = (0.0, 0.0, 0.0)  # over the validation images: loss, correct predictions, number of images

    def num_images(self, batch: Batch) -> int:
        return len(batch.labels)

    def inputs(self, batch: Batch) -> tuple[Tensor]:
        return (batch.images,)

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.model(batch.images).float()
        smoothing = self.recipe.label_smoothing
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing, reduction="sum")
        return {"loss": loss, "top1": (logits.argmax(1) == batch.labels).sum()}

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
