"""Lightning callbacks: checkpoints, early stopping, EMA and signal handling."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from lambdanets.data.batches import Batches
from lambdanets.device import best_device
from lambdanets.signals import check_signals, handle_signals, install
from lambdanets.training.distributed import all_reduce_sum
from lambdanets.training.module import TrainingModule


class Interrupted(Exception):  # noqa: N818
    """The run was stopped by a signal; it can be resumed from its last checkpoint."""


class KeepLast(Callback):
    """Writes last.ckpt every `every_n_steps` steps and after each epoch's validation; a signal stops the run.

    No checkpoint is written between the last step of an epoch and its validation, because Lightning would skip the
    validation when the run resumes. The position in the training data is stored here, because Lightning restores the
    state of a data loader only in the middle of an epoch.

    On a signal, the step is finished and a checkpoint written; a second SIGINT stops at once. All ranks stop after the
    same step, even if only one of them received the signal, and several ranks end a validation first.

    data_fingerprint: hash of the dataset, which `check_resumable` compares.
    """

    def __init__(self, path: Path, every_n_steps: int, training_batches: Batches, data_fingerprint: str) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.training_batches = training_batches
        self.data_fingerprint = data_fingerprint
        self._signaled = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "data": self.data_fingerprint,
            "parts": self.training_batches.accumulation_steps,
            **self.training_batches.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.training_batches.load_state_dict(state)

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning counts micro-batches; their number per step changes with the world size
        old_steps, new_steps = checkpoint["callbacks"]["KeepLast"]["parts"], self.training_batches.accumulation_steps
        for counts in checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"].values():
            if isinstance(counts, dict):
                in_progress = counts["processed"] - counts["completed"]  # 1 if written in on_train_batch_end
                counts.update({name: -(-count // old_steps) * new_steps for name, count in counts.items()})
                counts["completed"] = counts["processed"] - in_progress

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handle signals within the block. Lightning's own handlers can stop in the middle of an optimizer step."""
        check_signals()
        try:
            with handle_signals(self._on_signal):
                yield
        except SystemExit as error:  # Lightning raises it for a signal before the first step
            if not self._signaled:
                raise
            raise Interrupted from error

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._signaled and signum == signal.SIGINT:
            raise Interrupted
        self._signaled = True  # schedulers and torchrun may both send SIGTERM

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        install(self._on_signal)  # again, because Lightning has installed its own handlers

    def on_train_batch_end(
        self, trainer: Trainer, module: TrainingModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not module.ends_step:
            return
        stops = all_reduce_sum(self._signaled)[0] > 0
        ends_epoch = batch_idx + 1 >= trainer.num_training_batches
        if not ends_epoch and (stops or trainer.global_step % self.every_n_steps == 0):
            trainer.save_checkpoint(self.path)
        if stops:
            raise Interrupted

    def on_validation_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._signaled and trainer.world_size == 1:
            raise Interrupted

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        trainer.save_checkpoint(self.path)


class KeepBest(Callback):
    """Keeps best.ckpt, the checkpoint with the highest validation metric, and stops early.

    patience: epochs without improvement after which training stops, also at once if it is resumed later. None: never.
    """

    def __init__(self, path: Path, metric: str, patience: int | None) -> None:
        self.path, self.metric, self.patience = path, metric, patience
        self.best: float | None = None
        self.epochs_without_improvement = 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._stop_early(trainer)

    def on_validation_end(self, trainer: Trainer, module: TrainingModule) -> None:
        value = module.validation_metrics[self.metric]
        value = -math.inf if math.isnan(value) else value  # no image has objects
        if self.best is None or value > self.best:
            self.best, self.epochs_without_improvement = value, 0
            trainer.save_checkpoint(self.path)
        else:
            self.epochs_without_improvement += 1
        self._stop_early(trainer)

    def _stop_early(self, trainer: Trainer) -> None:
        if self.patience is not None and self.epochs_without_improvement >= self.patience:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "epochs_without_improvement": self.epochs_without_improvement}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.epochs_without_improvement = state["best"], state["epochs_without_improvement"]


class EMA(WeightAveraging):
    """EMA of parameters and running statistics. Validation, best.ckpt and the final weights use the EMA.

    After step t: ema += (1 - min(decay, (1 + t) / (10 + t))) (weights - ema). As in TensorFlow, the decay is smaller
    in the first steps, so the initial weights lose their influence quickly. Floating-point buffers are averaged too,
    as in timm: the running statistics of batch norm must fit the averaged parameters, not the current ones. Other
    buffers, such as counts, are copied.
    """

    def __init__(self, decay: float) -> None:
        @torch.no_grad()
        def average(averages: list[Tensor], weights: list[Tensor], steps: Tensor | int) -> None:
            step_decay = min(decay, (1 + int(steps)) / (10 + int(steps)))
            if averages[0].is_floating_point():  # torch calls this function once per dtype
                torch._foreach_lerp_(averages, weights, 1 - step_decay)
            else:
                torch._foreach_copy_(averages, weights)

        super().__init__(best_device(), use_buffers=True, multi_avg_fn=average)

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        super().setup(trainer, module, stage)
        if self._average_model is not None:
            self._average_model.n_averaged.fill_(1)  # if it were 0, torch would copy the weights after the first step

    def copy_to(self, module: LightningModule) -> None:
        """Copy the EMA weights into the model. Also works if this process resumed a run that had finished training."""
        self._copy_average_to_current(module)
