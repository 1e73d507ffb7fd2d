"""A run's curves for TensorBoard."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lambdanets.training.history import History
from lambdanets.training.speed import Speed


class TensorBoard(Callback):
    """Writes what metrics.csv and speed.csv hold to tensorboard/, and the learning rate.

    Each row is in its file before a checkpoint is written that knows of it, so that a run that goes on from there takes
    back what came after, and no more. history and speed: the callbacks that measure; history is registered before.
    """

    def __init__(self, folder: Path, history: History, speed: Speed) -> None:
        self._folder = folder / "tensorboard"
        self._history = history
        self._speed = speed
        self._written = 0
        self._rate_step = self._speed_step = 0  # of the last that was written
        self._writer: Any = None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second

        self._written = len(self._history.rows)
        self._rate_step = trainer.global_step
        self._writer = SummaryWriter(str(self._folder), purge_step=trainer.global_step + 1)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if len(self._history.rows) > self._written:
            self._write(trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._write(trainer)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._write(trainer)  # the last speed, which is measured after the last row
        self._writer.close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, trainer: Trainer) -> None:
        for step, _, split, *values in self._history.rows[self._written :]:
            for name, value in zip(self._history.metrics, values, strict=True):
                if value is not None:
                    self._writer.add_scalar(f"{name}/{split}", value, step)
        self._written = len(self._history.rows)
        if trainer.global_step > self._rate_step:
            self._rate_step = trainer.global_step
            rate = trainer.optimizers[0].param_groups[-1]["lr"]
            self._writer.add_scalar("learning_rate", rate, self._rate_step)
        if self._speed.measured_at > self._speed_step:
            self._speed_step = self._speed.measured_at
            for name, value in self._speed.latest.items():
                self._writer.add_scalar(f"speed/{name}", value, self._speed_step)
        self._writer.flush()
