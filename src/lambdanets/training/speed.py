"""Measures throughput, time spent waiting for data, and memory, for speed.csv and the progress bar."""

import time
from pathlib import Path
from typing import Any

import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from lambdanets import progress
from lambdanets.progress import format_duration
from lambdanets.training.callbacks import ends_step
from lambdanets.training.distributed import World
from lambdanets.training.metrics_log import append_row

COLUMNS = ("step", "images_per_second", "waiting_share", "process_gib", "gpu_gib")
STEPS_PER_ROW = 10


class Speed(Callback):
    """Measures images per second over all ranks, and this rank's memory and time spent waiting for data.

    Rank zero appends a row to speed.csv every STEPS_PER_ROW steps. latest: values of the last row by column.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self.path = folder / "speed.csv"
        self.latest: dict[str, float] = {}
        self._world = world
        self._process = psutil.Process()
        self._started = self._last_batch_end = 0.0
        self._data_seconds = 0.0
        self._images = self._steps = 0
        self._steps_left = 0
        self._seconds_per_step = 0.0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._reset()  # on_train_epoch_start is not called for a run that resumes in the middle of an epoch

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._reset()

    def _reset(self) -> None:
        self._started = self._last_batch_end = time.perf_counter()
        self._data_seconds, self._images, self._steps = 0.0, 0, 0

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._data_seconds += time.perf_counter() - self._last_batch_end

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._last_batch_end = time.perf_counter()
        if not ends_step(trainer, batch_idx):
            return
        self._images += batch.step_images
        self._steps += 1
        steps_per_epoch = trainer.num_training_batches // trainer.accumulate_grad_batches
        self._steps_left = steps_per_epoch * (trainer.max_epochs or 0) - trainer.global_step
        if trainer.global_step % STEPS_PER_ROW == 0 or not self.latest:
            self._measure(trainer)

    def _measure(self, trainer: Trainer) -> None:
        seconds = max(self._last_batch_end - self._started, 1e-9)
        self._seconds_per_step = seconds / self._steps
        self.latest = {
            "images_per_second": round(self._images / seconds, 1),
            "waiting_share": round(self._data_seconds / seconds, 4),
            "process_gib": round(self._process.memory_info().rss / 2**30, 3),
            "gpu_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3) if torch.cuda.is_available() else 0.0,
        }
        if self._world.is_rank_zero:
            append_row(self.path, COLUMNS, (trainer.global_step, *self.latest.values()))
        for logger in trainer.loggers:
            logger.log_metrics({f"speed/{name}": value for name, value in self.latest.items()}, trainer.global_step)
        self._reset()

    def format(self) -> str:
        """Format images per second, the fraction of time spent waiting for data if at least 10%, and the time left."""
        if not self.latest:
            return ""
        waiting = self.latest["waiting_share"]
        fields = [f"{self.latest['images_per_second']:.0f} images/s"]
        fields += [f"{waiting:.0%} waiting for data"] if waiting >= 0.1 else []
        seconds_left = self._steps_left * self._seconds_per_step
        fields += [f"{format_duration(seconds_left)} left"] if self._steps_left else []
        return ", ".join(fields)


class Progress(TQDMProgressBar):
    """Lightning's progress bar, with the throughput and the remaining time of the whole run."""

    def __init__(self, speed: Speed) -> None:
        super().__init__()
        self._speed = speed

    def get_metrics(self, trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        metrics = dict(super().get_metrics(trainer, module))
        metrics.pop("v_num", None)
        speed = self._speed.format()
        return metrics | ({"speed": speed} if speed else {})


class ProgressLines(Callback):
    """Prints progress lines to stderr, for when it is not a terminal.

    The loss is copied to the CPU only when a line is printed.
    """

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._loss: Any = None
        self._validation_note = ""
        self._progress = progress.Progress("training", unit="steps", note=self._note)

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._progress.__enter__()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._progress.__exit__(None, None, None)

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self._progress.__exit__(None, None, None)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        steps_per_epoch = int(trainer.num_training_batches) // trainer.accumulate_grad_batches
        self._progress.total = steps_per_epoch * (trainer.max_epochs or 0)
        self._progress.done = trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._progress.label = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._progress.done = trainer.global_step
        self._validation_note = ""
        if outputs and outputs.get("images"):  # "loss" is divided by the number of accumulation steps
            self._loss = outputs["sums"][0] / outputs["images"]

    def on_validation_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._validation_note = f"validating, batch {batch_idx + 1:,}"

    def _note(self) -> str:
        loss = "" if self._loss is None else f"loss {float(self._loss):.3f}"
        return ", ".join(text for text in (loss, self._validation_note, self._speed.format()) if text)
