"""Classification as a LightningModule: loss, optimizer, schedule."""

from typing import Any

import numpy as np
import timm.layers
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.training.data.loader import Batch
from lambdanets.training.data.order import Share
from lambdanets.training.finiteness import first_gradient_not_finite, first_not_finite
from lambdanets.training.processes import total
from lambdanets.training.recipe import Recipe
from lambdanets.training.schedules import schedule_of

# Names in timm: its sgd is Nesterov's, its rmsprop PyTorch's.
_OPTIMIZERS = {"sgd": "momentum", "rmsprop": "rmsproptf", "adamw": "adamw"}


class Classification(LightningModule):
    """Trains a model by a recipe; its checkpoints say which model and classes they hold.

    share: this process's part of each step. description: what `classifier.load_classifier` needs to build the model
    again, kept in every checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        classes: int,
        steps_per_epoch: int,
        description: str,
        share: Share | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.classes = classes
        self.steps_per_epoch = steps_per_epoch
        self.description = description
        self.share = share or Share()
        self._validated = (0.0, 0.0, 0.0)  # loss, right ones, images

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self._seed(batch_idx)

    def _seed(self, batch_idx: int) -> None:
        # what a step draws (dropout, stochastic depth) depends on the seed and its place alone, resumed or not
        place = (self.recipe.seed, self.global_step, self.share.process, batch_idx % self.share.parts)
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor] | None:
        several = self.share.processes * self.share.parts
        if len(batch.labels) < 2:  # all but one unreadable: batch norm has no statistics of one image
            if several == 1:
                return None
            if self.recipe.sync_batch_norm:
                raise InputError(
                    f"sync_batch_norm needs two readable images in each part of a step, and at step "
                    f"{self.global_step} one has {len(batch.labels)}: {'; '.join(batch.unreadable[:3])}"
                )
            # the other processes wait for a gradient
            return {"loss": torch.stack([p.sum() for p in self.model.parameters() if p.requires_grad]).sum() * 0}
        logits = self.model(batch.images).float()
        total = self._loss(logits, batch)
        # gradients are averaged over processes and parts, whose images may differ in number
        loss = total * (several / batch.step_images)
        if not loss.isfinite():
            self._explain(batch, batch_idx, loss)
        self.log("loss", loss, prog_bar=True, logger=False)
        correct = (logits.argmax(1) == batch.labels).sum()
        return {"loss": loss, "sum": total.detach(), "correct": correct}

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross entropy summed over the images; labels are smoothed, distributions are not."""
        smoothing = self.recipe.label_smoothing
        if batch.targets is None or batch.soft is None:
            return F.cross_entropy(logits, batch.labels, label_smoothing=smoothing, reduction="sum")
        if batch.targets.shape[1] != self.classes:
            raise InputError(f"pseudo-labels must have {self.classes} classes, got {batch.targets.shape[1]}")
        smoothed = batch.targets * (1 - smoothing) + smoothing / self.classes
        return F.cross_entropy(logits, torch.where(batch.soft[:, None], batch.targets, smoothed), reduction="sum")

    def _explain(self, batch: Batch, batch_idx: int, loss: Tensor) -> None:
        self._seed(batch_idx)
        with torch.compiler.set_stance("force_eager"):  # compiled code calls no hooks
            reason = first_not_finite(self.model, batch.images)
        raise InputError(
            f"the loss became {loss.item()} at step {self.global_step}; {reason}; lower learning_rate "
            f"(now {self.recipe.learning_rate}), raise warmup_epochs or set clip_gradient"
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.recipe.precision == "16-mixed":
            return  # the scaler meets infinite gradients by lowering its scale
        name = first_gradient_not_finite(self.model)
        if name is not None:
            raise InputError(
                f"the gradient became infinite or nan at step {self.global_step}; the parameter nearest to the loss "
                f"where it did is {name}; lower learning_rate (now {self.recipe.learning_rate}) or set clip_gradient"
            )

    def on_validation_epoch_start(self) -> None:
        self._validated = (0.0, 0.0, 0.0)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.labels):
            logits = self.model(batch.images).float()
            loss = F.cross_entropy(logits, batch.labels, reduction="sum").item()
            right = (logits.argmax(1) == batch.labels).sum().item()
            sums = zip(self._validated, (loss, right, len(batch.labels)), strict=True)
            self._validated = tuple(before + new for before, new in sums)

    def on_validation_epoch_end(self) -> None:
        loss, right, images = total(*self._validated)
        if images:  # the same in all processes, so that all write it or none
            self.log("val_loss", loss / images, logger=False)
            self.log("top1", right / images, prog_bar=True, logger=False)

    def configure_optimizers(self) -> dict[str, Any]:
        recipe = self.recipe
        more = {"betas": (recipe.momentum, 0.999)} if recipe.optimizer == "adamw" else {"momentum": recipe.momentum}
        optimizer = create_optimizer_v2(
            self.model,
            _OPTIMIZERS[recipe.optimizer],
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            **more,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule_of(recipe, self.steps_per_epoch))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["lambdanets"] = self.description


def prepare_batch_norm(model: nn.Module, recipe: Recipe, processes: int = 1) -> nn.Module:
    """The model with the recipe's momentum in its batch norms, over all GPUs where it says so.

    Raises InputError for batch norm over several processes without GPUs, which PyTorch does not have.
    """
    if recipe.batch_norm_momentum is not None:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = recipe.batch_norm_momentum
    if not recipe.sync_batch_norm or processes == 1:
        return model
    if not torch.cuda.is_available():
        raise InputError("sync_batch_norm needs a GPU for each process, and PyTorch finds none")
    # timm's conversion keeps the activations that are part of its norms; torch's drops them
    return timm.layers.convert_sync_batchnorm(model)
