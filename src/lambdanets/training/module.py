"""A step of training, as a LightningModule: gradient accumulation, optimizer, learning rate schedule, batch norm."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import timm.layers
import torch
from lightning.pytorch import LightningModule
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from lambdanets.data.order import BatchSlice
from lambdanets.errors import InputError
from lambdanets.training.finiteness import explain_gradient, explain_loss, first_gradient_not_finite
from lambdanets.training.recipe import TrainingRecipe

# Names in timm: its sgd is Nesterov's, its rmsprop PyTorch's.
_OPTIMIZERS = {"sgd": "momentum", "rmsprop": "rmsproptf", "adamw": "adamw"}


class TrainingModule(LightningModule):
    """Trains a model by a recipe; its checkpoints say which model and classes they hold.

    A task says what a batch's loss is and how it validates. batch_slice: this rank's part of a step. description: the
    model's card and the recipe (`ModelCard.to_json`), kept in every checkpoint.

    SUMS: names of what `sums` gives, the loss first. validated: what the last validation measured, by name, the same in
    all processes; empty where no image could be read.
    """

    SUMS: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        model: nn.Module,
        recipe: TrainingRecipe,
        steps_per_epoch: int,
        description: str,
        batch_slice: BatchSlice | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.steps_per_epoch = steps_per_epoch
        self.description = description
        self.batch_slice = batch_slice or BatchSlice()
        self.validated: dict[str, float] = {}
        self._micro_batch: tuple[Any, int] | None = None  # whose backward pass comes next, and its number

    @abstractmethod
    def count(self, batch: Any) -> int:
        """How many images of a batch could be read."""

    @abstractmethod
    def sums(self, batch: Any) -> dict[str, Tensor]:
        """What a batch comes to, each summed over its images; "loss" is what is minimized."""

    @abstractmethod
    def inputs(self, batch: Any) -> tuple[Any, ...]:
        """What the model is called with, for a batch."""

    @abstractmethod
    def words(self) -> str:
        """What was validated, for the line of an epoch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._seed(batch_idx)
        steps = self.recipe.epochs * self.steps_per_epoch
        if self.global_step >= steps - round(self.recipe.freeze_batch_norm * steps):
            freeze_batch_norm(self.model)

    @property
    def _micro_batches(self) -> int:
        """Of a step, over all ranks."""
        return self.batch_slice.world_size * self.batch_slice.accumulation_steps

    def _seed(self, batch_idx: int) -> None:
        # what a step draws (dropout, stochastic depth) depends on the seed and its place alone, resumed or not
        micro_batch = batch_idx % self.batch_slice.accumulation_steps
        place = (self.recipe.seed, self.global_step, self.batch_slice.rank, micro_batch)
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any] | None:
        several = self._micro_batches
        images = self.count(batch)
        if images < self.recipe.MIN_MICRO_BATCH:  # too many unreadable
            if several == 1:
                return None
            if self.recipe.sync_batch_norm:
                raise InputError(
                    f"sync_batch_norm needs {self.recipe.MIN_MICRO_BATCH} readable images per micro-batch, and at "
                    f"step {self.global_step} one has {images}: {'; '.join(batch.unreadable[:3])}"
                )
            # the other processes wait for a gradient
            return {"loss": torch.stack([p.sum() for p in self.model.parameters() if p.requires_grad]).sum() * 0}
        sums = self.sums(batch)
        # gradients are averaged over processes and parts, whose images may differ in number
        loss = sums["loss"] * (several / batch.step_images)
        if not loss.isfinite():
            value = loss.item()
            del sums, loss  # and with them the memory of the graph, before another one is made
            self._refuse_loss(batch, batch_idx, value)
        self._micro_batch = batch, batch_idx
        self.log("loss", loss, prog_bar=True, logger=False)
        return {"loss": loss, "images": images, "sums": torch.stack([sums[name].detach() for name in self.SUMS])}

    def _refuse_loss(self, batch: Any, batch_idx: int, loss: float) -> None:
        reason = self._explained(
            batch, batch_idx, lambda compute: explain_loss(self.model, self.inputs(batch), compute)
        )
        raise InputError(
            f"the loss became {loss} at step {self.global_step}; {reason}; lower learning_rate "
            f"(now {self.recipe.learning_rate}), raise warmup_epochs or set clip_gradient"
        )

    def on_after_backward(self) -> None:
        batch, self._micro_batch = self._micro_batch, None
        if self.recipe.precision == "16-mixed":
            return  # the scaler meets infinite gradients by lowering its scale
        name = first_gradient_not_finite(self.model)
        if name is None:
            return
        reason = "its images could not be read, so that it is another process's"
        if batch is not None:
            self.model.zero_grad(set_to_none=True)
            reason = self._explained(*batch, lambda compute: explain_gradient(self.model, compute))
        raise InputError(
            f"the gradient became infinite or nan at step {self.global_step}; {reason}; the parameter nearest to the "
            f"loss with such a gradient is {name}; lower learning_rate (now {self.recipe.learning_rate}) or set "
            "clip_gradient"
        )

    def _explained(self, batch: Any, batch_idx: int, explain: Callable[[Callable[[], Tensor]], str]) -> str:
        """What `explain` says of the loss of a micro-batch, computed once more as it was."""
        if self.recipe.sync_batch_norm and self.batch_slice.world_size > 1:  # it would wait for the other processes
            return "which operation was first is not looked for under sync_batch_norm"

        def compute() -> Tensor:
            self._seed(batch_idx)
            with self.trainer.precision_plugin.forward_context():
                return self.sums(batch)["loss"] * (self._micro_batches / batch.step_images)

        with torch.compiler.set_stance("force_eager"):  # compiled code shows neither operations nor modules
            return explain(compute)

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


def schedule_of(recipe: TrainingRecipe, steps_per_epoch: int) -> Callable[[int], float]:
    """Share of the recipe's learning rate at a step."""
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if recipe.schedule == "staircase":
        length = recipe.decay_epochs * steps_per_epoch
        return lambda step: warmup_then_staircase(step, warmup, length, recipe.decay)
    total = recipe.epochs * steps_per_epoch
    if recipe.schedule == "late_steps":
        return lambda step: warmup_then_late_steps(step, warmup, total)
    return lambda step: warmup_then_cosine(step, warmup, total)


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Linear over the warm-up, then half a cosine to 0 at the end."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def warmup_then_staircase(step: int, warmup: int, length: float, decay: float) -> float:
    """Linear over the warm-up, then times decay every `length` steps."""
    return (step + 1) / warmup if step < warmup else decay ** int((step - warmup) / length)


def warmup_then_late_steps(step: int, warmup: int, total: int) -> float:
    """Linear over the warm-up, then 1, and a tenth of it after 90%, 95% and 97.5% of the steps each."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 ** sum(step >= share * total for share in (0.9, 0.95, 0.975))


def prepare_batch_norm(model: nn.Module, recipe: TrainingRecipe, processes: int = 1) -> nn.Module:
    """Put the recipe's momentum into the model's batch norms.

    Raises InputError for batch norm over several processes without GPUs, which PyTorch does not have.
    """
    if recipe.sync_batch_norm and processes > 1 and not torch.cuda.is_available():
        raise InputError("sync_batch_norm needs a GPU for each process, and PyTorch finds none")
    if recipe.batch_norm_momentum is not None:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = recipe.batch_norm_momentum
    return model


def freeze_batch_norm(model: nn.Module) -> None:
    """Let the model's batch norms keep to their running statistics in training; their weights go on learning."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def synchronized(model: nn.Module, recipe: TrainingRecipe, processes: int) -> nn.Module:
    """The model with batch norms over all processes, where the recipe says so and there are several.

    Not to be run by one process alone any more: each forward pass waits for the others.
    """
    if not recipe.sync_batch_norm or processes == 1:
        return model
    before = dict(model.named_modules())
    # timm's conversion keeps the activations that are part of its norms; torch's drops them
    model = timm.layers.convert_sync_batchnorm(model)
    for name, module in model.named_modules():
        if module is not before[name]:  # the conversion drops hooks, such as those that hide padding
            module._forward_pre_hooks.update(before[name]._forward_pre_hooks)
            module._forward_hooks.update(before[name]._forward_hooks)
    return model
