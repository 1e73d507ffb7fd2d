"""A run's curves: curves.png, and TensorBoard."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure

from lambdanets.files import atomic_open
from lambdanets.training.history import History, Row
from lambdanets.training.speed import Speed

Panels = Sequence[tuple[str, Sequence[str]]]
_COLOURS = {"train": "#94a3b8", "val": "#1d4ed8"}


class Curves(Callback):
    """Draws curves.png after an epoch, unless it was drawn within the last minute."""

    def __init__(self, folder: Path, history: History, panels: Panels) -> None:
        self._path = folder / "curves.png"
        self._history = history
        self._panels = panels
        self._drawn = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if time.monotonic() - self._drawn > 60:
            draw_curves(self._history.rows, self._history.metrics, self._panels, self._path)
            self._drawn = time.monotonic()


def draw_curves(rows: Sequence[Row], metrics: Sequence[str], panels: Panels, path: Path) -> None:
    """Measures of training and validation against the step, from the rows of metrics.csv.

    panels: a title and the metrics below it; where these are several, the parts of a panel are told apart by colour.
    """
    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axis, (title, names) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name in names:
            for split, colour in _COLOURS.items():
                column = 3 + metrics.index(name)
                chosen = [row for row in rows if row[2] == split and row[column] is not None]
                if not chosen:
                    continue
                axis.plot(
                    [row[0] for row in chosen],
                    [row[column] for row in chosen],
                    color=colour if len(names) == 1 else None,
                    label=split if len(names) == 1 else name,
                    marker="o" if split == "val" else None,
                    markersize=3,
                )
        axis.set(xlabel="step", title=title)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)


class TensorBoard(Callback):
    """Writes what metrics.csv and speed.csv hold to tensorboard/, and the learning rate.

    Each row is in its file before a checkpoint is written that knows of it, so that a run that resumes from there takes
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
