"""The LightningModule of all tasks: training step, batch norm, validation, optimizer and schedule; the EMA."""

import math
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any, assert_never

import numpy as np
import timm.layers
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from torch import Tensor, nn

from lambdanets.data.order import BatchSlice
from lambdanets.device import resolve_device
from lambdanets.errors import InputError
from lambdanets.training.distributed import all_gather_lists, broadcast_from_rank_zero
from lambdanets.training.recipe import OPTIMIZERS, TrainingRecipe
from lambdanets.training.task import Task

# The gradient scaler of 16-mixed halves its scale, initially 2**16, at each step with non-finite gradients.
_MIN_GRADIENT_SCALE = 2.0**-10


class TrainingModule(LightningModule):
    """Trains the model of a task.

    batch_slice: the images of each global batch that this rank computes, and its accumulation
    steps. validation_metrics: metrics of the last validation, the same on all ranks; empty if no
    image was readable.
    """

    def __init__(self, task: Task, steps_per_epoch: int, batch_slice: BatchSlice | None = None) -> None:
        super().__init__()
        self.task, self.model, self.recipe = task, task.model, task.recipe
        self.steps_per_epoch = steps_per_epoch
        self.batch_slice = batch_slice or BatchSlice()
        self._num_micro_batches = self.batch_slice.world_size * self.batch_slice.accumulation_steps  # per step
        self.validation_metrics: dict[str, float] = {}
        self._evaluator = task.evaluator(task.validation)
        self._measures: list[Any] = []  # of the validation images of this rank
        self._num_images = 0  # of the last micro-batch
        self.ends_step = True  # whether it is the last micro-batch of its step
        self._statistics: StepStatistics | None = None  # of a step with several micro-batches
        self.batch_end = 0.0  # time when the callbacks after the last batch had ended

    def __getstate__(self) -> dict[str, Any]:  # the copy of the EMA does not need the data
        return super().__getstate__() | {"task": None, "_evaluator": None}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        micro_batch = batch_idx % self.batch_slice.accumulation_steps
        self.ends_step = micro_batch + 1 == self.batch_slice.accumulation_steps
        # dropout and stochastic depth depend only on these numbers, so a resumed run repeats them
        key = (self.recipe.seed, self.global_step, self.batch_slice.rank, micro_batch)
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
        steps = self.recipe.epochs * self.steps_per_epoch
        if self.global_step >= steps - round(self.recipe.freeze_batch_norm * steps):
            for norm in _norms(self.model):  # their affine parameters are still trained
                norm.eval()
        if self._num_micro_batches > 1 and micro_batch == 0:
            self._statistics = StepStatistics(self.model)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self._num_images = self.task.num_images(batch)
        if not self._num_images:  # too many images are unreadable
            if self.recipe.sync_batch_norm and self.batch_slice.world_size > 1:
                raise InputError(
                    f"sync_batch_norm needs {self.batch_slice.min_micro_batch} readable images per micro-batch, got "
                    f"fewer at step {self.global_step}: {'; '.join(batch.unreadable[:3])}"
                )
            # the gradient is zero; other ranks wait for it in the all-reduce
            return {"loss": torch.stack([p.sum() for p in self.model.parameters() if p.requires_grad]).sum() * 0}
        sums = self.task.losses(batch)
        # Gradients are averaged over ranks and micro-batches, but these may have different numbers of images.
        return {
            "loss": sums["loss"] * (self._num_micro_batches / batch.step_images),
            "images": self._num_images,
            "sums": torch.stack([sums[name].detach() for name in self.task.TRAINING_METRICS]),
        }

    def on_after_backward(self) -> None:
        if self._statistics is not None:
            self._statistics.add(self._num_images)
            if self.ends_step:
                self._statistics.finish()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batch_end = time.perf_counter()

    def check_finite(self, loss: float = 0.0) -> None:
        """Raise InputError if weights, statistics or a loss are not finite, or gradients at no scale. A GPU waits.

        A gradient with NaN or inf makes weights so, except with 16-mixed, whose scaler skips a step
        with such a loss or gradient and reduces its scale; but batch norm has the statistics of the skipped step.
        """
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)  # of 16-mixed
        statistics = [buffer for norm in _norms(self.model) for buffer in norm.buffers() if buffer.is_floating_point()]
        norm = torch.nn.utils.get_total_norm([*(p.detach() for p in self.model.parameters()), *statistics])
        is_finite = math.isfinite(loss) if scaler is None else scaler.get_scale() >= _MIN_GRADIENT_SCALE
        if not (norm.isfinite() and is_finite):
            raise InputError(
                f"the loss or a gradient became inf or nan before step {self.global_step}; lower learning_rate (now "
                f"{self.recipe.learning_rate}), raise warmup_epochs or set clip_gradient"
            )

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._measures += self._evaluator.measure(batch)

    def on_validation_epoch_end(self) -> None:
        measures, self._measures = all_gather_lists(self._measures), []
        self.validation_metrics = broadcast_from_rank_zero(lambda: self._score(measures))

    def _score(self, measures: list[Any]) -> dict[str, float]:
        if not measures:
            return {}
        evaluation = self._evaluator.score(sorted(measures, key=itemgetter(0)))
        # None if no readable image has objects
        return {name: math.nan if x is None else x for name, x in evaluation.metrics.items()}

    def configure_optimizers(self) -> dict[str, Any]:
        recipe = self.recipe
        # timm asks only the outermost module, which may be a detector, for names without weight decay
        exempt = {*getattr(self.model, "no_weight_decay", set)(), "*table"}
        groups = param_groups_weight_decay(self.model, recipe.weight_decay, no_weight_decay_list=exempt)
        # timm passes on those that the optimizer takes
        options = {"momentum": recipe.momentum, "betas": (recipe.momentum, 0.999)}
        optimizer = create_optimizer_v2(groups, OPTIMIZERS[recipe.optimizer], lr=recipe.learning_rate, **options)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, make_schedule(recipe, self.steps_per_epoch))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_finite()
        checkpoint["lambdanets"] = self.task.card().to_json()
        checkpoint["initial_weights"] = self.task.initial_weights  # the file may be removed


def make_schedule(recipe: TrainingRecipe, steps_per_epoch: int) -> Callable[[int], float]:
    """Return the learning rate factor as a function of the step: a linear warm-up, then the recipe's schedule."""
    warmup_steps = round(recipe.warmup_epochs * steps_per_epoch)
    num_steps = recipe.epochs * steps_per_epoch

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        if recipe.schedule == "cosine":
            progress = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
            return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        if recipe.schedule == "staircase":
            return recipe.decay ** int((step - warmup_steps) / (recipe.decay_epochs * steps_per_epoch))
        if recipe.schedule == "late_steps":
            return 0.1 ** sum(step >= fraction * num_steps for fraction in (0.9, 0.95, 0.975))
        assert_never(recipe.schedule)

    return factor


class EMA(WeightAveraging):
    """EMA of parameters and running statistics, for validation (the superclass swaps), best.ckpt and the final weights.

    After step t: ema += (1 - min(decay, (1 + t) / (10 + t))) (weights - ema). As in TensorFlow, the decay is smaller
    in the first steps, so the initial weights lose their influence quickly. Floating-point buffers are averaged too,
    as in timm: the running statistics of batch norm must fit the averaged parameters, not the current ones. Other
    buffers, such as counts, are copied.
    """

    _latest_update_step: int  # of the superclass, which saves it in checkpoints

    def __init__(self, decay: float) -> None:
        super().__init__(resolve_device(), use_buffers=True)
        self.decay = decay

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:  # torch's update_parameters would read a count on the GPU, and so wait for the step
        if trainer.global_step == self._latest_update_step:
            return
        self._latest_update_step = step = int(trainer.global_step)
        averages, weights = ([*each.parameters(), *each.buffers()] for each in (self._average_model.module, module))
        pairs: list[tuple[Tensor, Tensor]] = [*zip(averages, weights, strict=True)]
        floating = [pair for pair in pairs if pair[0].is_floating_point()]
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_([average for average, _ in floating], [weight for _, weight in floating], 1 - decay)
        for average, weight in pairs:
            if not average.is_floating_point():
                average.copy_(weight)


class StepStatistics:
    """The running statistics of one step, which has several micro-batches or ranks.

    PyTorch updates running statistics in each forward pass, so they would depend on the number of micro-batches, and on
    the rank. Here each micro-batch starts from the statistics before the step, and the step ends with the mean of the
    results over all its images, on all ranks. This equals one update with the mean of the batch statistics.

    Layers that are in eval mode when the step starts keep their statistics.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [buffer for norm in _norms(model) if norm.training for buffer in norm.buffers()]
        self._before = [buffer.clone() for buffer in self._buffers]
        self._sums = [torch.zeros_like(buffer, dtype=torch.float64) for buffer in self._buffers]
        self._images = torch.zeros(1, dtype=torch.float64, device=next(model.parameters()).device)

    def add(self, num_images: int) -> None:
        """Add the statistics after the forward pass of a micro-batch, which has no images if there was none."""
        self._images += num_images
        for buffer, before, total in zip(self._buffers, self._before, self._sums, strict=True):
            total += num_images * buffer.double()
            buffer.copy_(before)

    def finish(self) -> None:
        """Set the statistics to those of the step. Waits for the other ranks."""
        totals = [*self._sums, self._images]
        flat = torch.cat([total.flatten() for total in totals])
        if dist.is_initialized():
            dist.all_reduce(flat)
        if flat[-1]:
            *means, _ = (flat / flat[-1]).split([total.numel() for total in totals])
            for buffer, mean in zip(self._buffers, means, strict=True):
                buffer.copy_(mean.view_as(buffer))


def _norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def prepare_batch_norm(model: nn.Module, recipe: TrainingRecipe, world_size: int = 1) -> nn.Module:
    """Set the recipe's momentum, and convert to synchronized batch norm if it has that and there are several ranks.

    After the conversion, a forward pass on one rank waits for the other ranks.
    """
    if recipe.batch_norm_momentum is not None:
        for norm in _norms(model):
            norm.momentum = recipe.batch_norm_momentum
    if not recipe.sync_batch_norm or world_size == 1:
        return model
    original_modules = dict(model.named_modules())
    # timm's conversion keeps the activations of its norm-act layers; PyTorch's removes them
    model = timm.layers.convert_sync_batchnorm(model)
    for name, module in model.named_modules():
        if module is not original_modules[name]:
            # the conversion removes hooks, such as those that mask padding
            module._forward_pre_hooks.update(original_modules[name]._forward_pre_hooks)
            module._forward_hooks.update(original_modules[name]._forward_hooks)
    return model
