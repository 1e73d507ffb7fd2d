"""The training step as a LightningModule: gradient accumulation, optimizer, learning rate schedule, batch norm."""

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
from lambdanets.training.nonfinite import diagnose_gradient, diagnose_loss, first_nonfinite_gradient
from lambdanets.training.recipe import TrainingRecipe

# timm's "sgd" has Nesterov momentum, its "rmsprop" is PyTorch's and "rmsproptf" TensorFlow's.
_OPTIMIZERS = {"sgd": "momentum", "rmsprop": "rmsproptf", "adamw": "adamw"}


class TrainingModule(LightningModule):
    """Trains a model by a recipe. A task's subclass computes the loss and validates.

    batch_slice: the part of each batch that this rank computes. description: model card and recipe as JSON
    (`ModelCard.to_json`), stored in every checkpoint.

    SUMS: keys of `sums`, the loss first. validated: metrics of the last validation, the same on all ranks; empty if no
    image was readable.
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
        self._micro_batch: tuple[Any, int] | None = None  # batch and index of the next backward pass

    @abstractmethod
    def count(self, batch: Any) -> int:
        """Number of readable images in a batch."""

    @abstractmethod
    def sums(self, batch: Any) -> dict[str, Tensor]:
        """The loss and the training metrics of a batch, each summed over its images."""

    @abstractmethod
    def inputs(self, batch: Any) -> tuple[Any, ...]:
        """The arguments of the model for a batch."""

    @abstractmethod
    def format_validated(self) -> str:
        """The validation metrics, for the line that is printed after an epoch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._seed(batch_idx)
        steps = self.recipe.epochs * self.steps_per_epoch
        if self.global_step >= steps - round(self.recipe.freeze_batch_norm * steps):
            freeze_batch_norm(self.model)

    @property
    def _micro_batches(self) -> int:
        """Micro-batches of a step, over all ranks."""
        return self.batch_slice.world_size * self.batch_slice.accumulation_steps

    def _seed(self, batch_idx: int) -> None:
        # dropout and stochastic depth depend on seed, step, rank and micro-batch only: a resumed run repeats them
        micro_batch = batch_idx % self.batch_slice.accumulation_steps
        key = (self.recipe.seed, self.global_step, self.batch_slice.rank, micro_batch)
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any] | None:
        micro_batches = self._micro_batches
        images = self.count(batch)
        if images < self.recipe.MIN_MICRO_BATCH:  # too many unreadable
            if micro_batches == 1:
                return None
            if self.recipe.sync_batch_norm:
                raise InputError(
                    f"sync_batch_norm needs {self.recipe.MIN_MICRO_BATCH} readable images per micro-batch, and at "
                    f"step {self.global_step} one has {images}: {'; '.join(batch.unreadable[:3])}"
                )
            # a zero gradient: the other ranks wait in the all-reduce
            return {"loss": torch.stack([p.sum() for p in self.model.parameters() if p.requires_grad]).sum() * 0}
        sums = self.sums(batch)
        # gradients are averaged over ranks and micro-batches, which may differ in their number of images
        loss = sums["loss"] * (micro_batches / batch.step_images)
        if not loss.isfinite():
            value = loss.item()
            del sums, loss  # frees the graph before another one is built
            self._raise_nonfinite_loss(batch, batch_idx, value)
        self._micro_batch = batch, batch_idx
        self.log("loss", loss, prog_bar=True, logger=False)
        return {"loss": loss, "images": images, "sums": torch.stack([sums[name].detach() for name in self.SUMS])}

    def _raise_nonfinite_loss(self, batch: Any, batch_idx: int, loss: float) -> None:
        reason = self._diagnose(
            batch, batch_idx, lambda compute: diagnose_loss(self.model, self.inputs(batch), compute)
        )
        raise InputError(
            f"the loss became {loss} at step {self.global_step}; {reason}; lower learning_rate "
            f"(now {self.recipe.learning_rate}), raise warmup_epochs or set clip_gradient"
        )

    def on_after_backward(self) -> None:
        batch, self._micro_batch = self._micro_batch, None
        if self.recipe.precision == "16-mixed":
            return  # the gradient scaler skips the step and lowers its scale
        name = first_nonfinite_gradient(self.model)
        if name is None:
            return
        reason = "it comes from another rank, as no image of this one was readable"
        if batch is not None:
            self.model.zero_grad(set_to_none=True)
            reason = self._diagnose(*batch, lambda compute: diagnose_gradient(self.model, compute))
        raise InputError(
            f"the gradient became infinite or nan at step {self.global_step}; {reason}; the parameter nearest to the "
            f"loss with such a gradient is {name}; lower learning_rate (now {self.recipe.learning_rate}) or set "
            "clip_gradient"
        )

    def _diagnose(self, batch: Any, batch_idx: int, diagnose: Callable[[Callable[[], Tensor]], str]) -> str:
        """Call `diagnose` with a function that recomputes the loss of a micro-batch."""
        if self.recipe.sync_batch_norm and self.batch_slice.world_size > 1:  # would wait for the other ranks
            return "the operation is not diagnosed under sync_batch_norm"

        def compute() -> Tensor:
            self._seed(batch_idx)
            with self.trainer.precision_plugin.forward_context():
                return self.sums(batch)["loss"] * (self._micro_batches / batch.step_images)

        with torch.compiler.set_stance("force_eager"):  # compiled code hides operations and modules
            return diagnose(compute)

    def configure_optimizers(self) -> dict[str, Any]:
        recipe = self.recipe
        options = {"betas": (recipe.momentum, 0.999)} if recipe.optimizer == "adamw" else {"momentum": recipe.momentum}
        optimizer = create_optimizer_v2(
            self.model,
            _OPTIMIZERS[recipe.optimizer],
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            **options,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule_of(recipe, self.steps_per_epoch))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["lambdanets"] = self.description


def schedule_of(recipe: TrainingRecipe, steps_per_epoch: int) -> Callable[[int], float]:
    """The factor of the learning rate at each step."""
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if recipe.schedule == "staircase":
        length = recipe.decay_epochs * steps_per_epoch
        return lambda step: warmup_then_staircase(step, warmup, length, recipe.decay)
    total = recipe.epochs * steps_per_epoch
    if recipe.schedule == "late_steps":
        return lambda step: warmup_then_late_steps(step, warmup, total)
    return lambda step: warmup_then_cosine(step, warmup, total)


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Linear warm-up, then cosine decay to 0."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def warmup_then_staircase(step: int, warmup: int, length: float, decay: float) -> float:
    """Linear warm-up, then multiplied by `decay` every `length` steps."""
    return (step + 1) / warmup if step < warmup else decay ** int((step - warmup) / length)


def warmup_then_late_steps(step: int, warmup: int, total: int) -> float:
    """Linear warm-up, then 1, multiplied by 0.1 after 90%, 95% and 97.5% of the steps."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 ** sum(step >= share * total for share in (0.9, 0.95, 0.975))


def prepare_batch_norm(model: nn.Module, recipe: TrainingRecipe, processes: int = 1) -> nn.Module:
    """Set the recipe's momentum in all batch norms.

    Raises InputError for sync_batch_norm without GPUs, which PyTorch does not support.
    """
    if recipe.sync_batch_norm and processes > 1 and not torch.cuda.is_available():
        raise InputError("sync_batch_norm needs one GPU per process, and PyTorch finds none")
    if recipe.batch_norm_momentum is not None:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = recipe.batch_norm_momentum
    return model


def freeze_batch_norm(model: nn.Module) -> None:
    """Put all batch norms into eval mode; their affine parameters are still trained."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def synchronized(model: nn.Module, recipe: TrainingRecipe, processes: int) -> nn.Module:
    """Convert to synchronized batch norm if the recipe says so and there are several ranks.

    From then on a forward pass on one rank waits for the others.
    """
    if not recipe.sync_batch_norm or processes == 1:
        return model
    before = dict(model.named_modules())
    # timm's conversion keeps the activations of its norm-act layers, torch's drops them
    model = timm.layers.convert_sync_batchnorm(model)
    for name, module in model.named_modules():
        if module is not before[name]:  # the conversion drops hooks, such as those that mask padding
            module._forward_pre_hooks.update(before[name]._forward_pre_hooks)
            module._forward_hooks.update(before[name]._forward_hooks)
    return model
