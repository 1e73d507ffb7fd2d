"""Classification as a LightningModule: loss, optimizer, schedule."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from lambdanets.errors import InputError
from lambdanets.training.data.loader import Batch
from lambdanets.training.recipe import Recipe


class Classification(LightningModule):
    """Trains a model by a recipe; its checkpoints say which model and classes they hold.

    description: what `classifier.load_classifier` needs to build the model again, kept in every checkpoint.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, classes: int, steps_per_epoch: int, description: str) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.steps_per_epoch = steps_per_epoch
        self.description = description
        self.top1 = MulticlassAccuracy(classes, average="micro")

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # what a step draws (dropout, stochastic depth) depends on the seed and its number alone, resumed or not
        torch.manual_seed(int(np.random.SeedSequence((self.recipe.seed, self.global_step)).generate_state(1)[0]))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor] | None:
        if len(batch.labels) < 2:
            return None  # all but one unreadable: batch norm has no statistics of one image
        logits = self.model(batch.images)
        loss = F.cross_entropy(logits.float(), batch.labels, label_smoothing=self.recipe.label_smoothing)
        if not loss.isfinite():
            raise InputError(
                f"the loss became {loss.item()} at step {self.global_step}; lower learning_rate "
                f"(now {self.recipe.learning_rate}), raise warmup_epochs or set clip_gradient"
            )
        self.log("loss", loss, prog_bar=True, logger=False)
        return {"loss": loss, "correct": (logits.argmax(1) == batch.labels).float().mean()}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.labels):
            logits = self.model(batch.images).float()
            self.top1(logits, batch.labels)
            loss = F.cross_entropy(logits, batch.labels)
            images = len(batch.labels)
            self.log("val_loss", loss, on_epoch=True, batch_size=images, logger=False)
            self.log("top1", self.top1, on_epoch=True, prog_bar=True, batch_size=images, logger=False)

    def configure_optimizers(self) -> dict[str, Any]:
        recipe = self.recipe
        optimizer = create_optimizer_v2(
            self.model,
            "momentum" if recipe.optimizer == "sgd" else recipe.optimizer,  # timm's sgd is Nesterov's
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            **({"momentum": recipe.momentum} if recipe.optimizer == "sgd" else {"betas": (recipe.momentum, 0.999)}),
        )
        warmup = round(recipe.warmup_epochs * self.steps_per_epoch)
        total = recipe.epochs * self.steps_per_epoch
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_then_cosine(step, warmup, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["lambdanets"] = self.description


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Share of the peak learning rate at a step: linear over the warm-up, then half a cosine to 0 at the end."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
