"""The log of a run: metrics.csv, TensorBoard, progress, a printed line per epoch, and unreadable images."""

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from lambdanets.data.images import check_unreadable
from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.progress import Progress, format_duration
from lambdanets.training.callbacks import ends_step
from lambdanets.training.distributed import World, all_gather_lists, all_reduce_sum
from lambdanets.training.module import TrainingModule

METRICS = "metrics.csv"
COLUMNS = ("step", "epoch", "split")
SPEED = ("images_per_second", "waiting_share", "process_gib", "gpu_gib")
STEPS_PER_ROW = 10


class RunLog(Callback):
    """Collects metrics over all ranks, measures speed and memory, and on rank 0 writes and shows them.

    A training row is the mean of STEPS_PER_ROW steps, a validation row ends an epoch. The columns
    are step, epoch, split, the task's metrics, images per second over all ranks, the share of the
    time spent waiting for data, and the memory of rank 0. On a GPU, only a row and a checkpoint
    wait for its steps. Rows are stored in checkpoints: a resumed run has each step once.

    metrics: names of the task's columns. unreadable: one message per skipped image, over all
    ranks; with more than max_unreadable the run stops.
    """

    state_key = "History"  # its name in checkpoints, also in those of earlier versions

    def __init__(self, folder: Path, metrics: Sequence[str], world: World, max_unreadable: int) -> None:
        self.path = folder / METRICS
        self.metrics = tuple(metrics)
        self.rows: list[list[Any]] = []  # lines of metrics.csv; None where nothing was measured
        self.unreadable: set[str] = set()
        self.images_seen = 0
        self._columns = (*COLUMNS, *self.metrics, *SPEED)
        self._world = world
        self._max_unreadable = max_unreadable
        self._sums: list[float] = []  # images and the task's TRAINING_METRICS since the last row, all ranks
        self._new_sums: Tensor | None = None  # those of this rank that are not in `_sums`
        self._new_unreadable: list[str] = []  # messages of this rank that are not in `unreadable`
        self._module: TrainingModule
        self._writer: SummaryWriter | None = None  # of TensorBoard, on rank 0
        self._process = psutil.Process()
        self._speed: dict[str, float] = {}
        self._seconds_per_step = 0.0
        self._steps_left = 0
        self._progress = Progress("training", total=0, unit="steps", note=self._note)
        self._loss: Any = None  # of the last step; it is copied from the GPU only when it is shown
        self._validation_note = ""

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        self._module = module
        if self._world.is_rank_zero:
            if self.rows:  # removes rows that were written after the checkpoint
                text = io.StringIO(newline="")
                csv.writer(text).writerows([self._columns, *self.rows])
                atomic_write(self.path, text.getvalue().encode())
            else:  # the run (re)starts without a checkpoint
                self.path.unlink(missing_ok=True)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._start_clock()  # a run that resumes in the middle of an epoch does not call on_train_epoch_start
        if self._world.is_rank_zero:
            # TensorBoard discards rows that were written after the checkpoint
            self._writer = SummaryWriter(self.path.with_name("tensorboard"), purge_step=trainer.global_step + 1)
            self._progress.total = self._module.steps_per_epoch * (trainer.max_epochs or 0)
            self._progress.done = trainer.global_step
            self._progress.__enter__()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        self._progress.__exit__()
        if self._writer is not None:
            self._writer.close()

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._start_clock()
        self._progress.label = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"

    def _start_clock(self) -> None:
        self._started = self._module.batch_end = time.perf_counter()
        self._waited, self._images, self._steps = 0.0, 0, 0

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._waited += time.perf_counter() - self._module.batch_end

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._note_unreadable(batch)
        self._validation_note = ""
        if outputs and "sums" in outputs:
            sums = outputs["sums"].double()
            sums = torch.cat([sums.new_full((1,), outputs["images"]), sums])
            self._loss = sums[1] / sums[0]
            self._new_sums = sums if self._new_sums is None else self._new_sums + sums
        if ends_step(trainer, batch_idx):
            self._images += batch.step_images
            self._steps += 1
            self._progress.done = trainer.global_step
            self._steps_left = self._module.steps_per_epoch * (trainer.max_epochs or 0) - trainer.global_step
            if trainer.global_step % STEPS_PER_ROW == 0:
                self._add_training_row(trainer)
            elif not self._speed:
                self._measure_speed()

    def on_validation_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._add_training_row(trainer)
        if not self.rows:
            reason = min(self.unreadable, default="the images are too small")
            several = self._module.batch_slice.min_micro_batch > 1
            required = "two readable images" if several else "a readable image"
            raise InputError(f"no training batch had {required}: {reason}")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._note_unreadable(batch)
        self._validation_note = f"validating, batch {batch_idx + 1:,}"

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._add_unreadable()
        validation = self._module.validation_metrics
        if not validation:
            raise InputError(f"no validation image could be read; the first error: {min(self.unreadable)}")
        self._add_row(trainer, "val", validation)
        losses = self.values("train", self.metrics[0])
        fields = [
            f"epoch {trainer.current_epoch + 1:>3}/{trainer.max_epochs}",
            *([f"loss {losses[-1]:.3f}"] if losses else []),
            self._module.validation_summary,
            self._format_speed(),
        ]
        if self._world.is_rank_zero:
            tqdm.write("  ".join(fields))  # above the bar

    def _note_unreadable(self, batch: Any) -> None:
        self._new_unreadable += [text for text in batch.unreadable if text not in self.unreadable]

    def _add_unreadable(self) -> None:
        self.unreadable.update(all_gather_lists(self._new_unreadable))
        self._new_unreadable = []
        check_unreadable(sorted(self.unreadable), self._max_unreadable)

    def _reduce(self) -> None:
        """Add the sums of all ranks since the last call. On a GPU, this waits for its steps."""
        self._module.check_finite()
        zeros = [0.0] * (1 + len(self._module.task.TRAINING_METRICS))
        new_sums = zeros if self._new_sums is None else self._new_sums.tolist()
        *new_sums, unreadable = all_reduce_sum(*new_sums, len(self._new_unreadable))
        self._sums = [old + new for old, new in zip(self._sums or zeros, new_sums, strict=True)]
        self._new_sums = None
        self.images_seen += int(new_sums[0])
        if unreadable:
            self._add_unreadable()

    def _add_training_row(self, trainer: Trainer) -> None:
        self._reduce()
        images, *sums = self._sums
        if images:
            means = {name: s / images for name, s in zip(self._module.task.TRAINING_METRICS, sums, strict=True)}
            self._sums = []
            self._measure_speed()
            self._add_row(trainer, "train", means | self._speed)
            self._start_clock()

    def _measure_speed(self) -> None:
        seconds = max(time.perf_counter() - self._started, 1e-9)
        self._seconds_per_step = seconds / max(self._steps, 1)
        on_gpu = torch.cuda.is_available()
        self._speed = {
            "images_per_second": self._images / seconds,
            "waiting_share": self._waited / seconds,
            "process_gib": self._process.memory_info().rss / 2**30,
            "gpu_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
        }

    def _add_row(self, trainer: Trainer, split: str, values: dict[str, float]) -> None:
        values = {name: round(value, 6) for name, value in values.items()}
        row = [trainer.global_step, trainer.current_epoch + 1, split]
        row += [values.get(name) for name in self._columns[len(COLUMNS) :]]
        self.rows.append(row)
        if self._writer is None:
            return
        is_new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self._columns, row] if is_new else [row])
        for name, value in values.items():
            self._writer.add_scalar(f"speed/{name}" if name in SPEED else f"{name}/{split}", value, row[0])
        if split == "train":
            self._writer.add_scalar("learning_rate", trainer.optimizers[0].param_groups[-1]["lr"], row[0])
        self._writer.flush()  # a row that is in a checkpoint is then also in the event file

    def values(self, split: str, metric: str) -> list[float]:
        """Return all values of a metric in order of the steps."""
        column = len(COLUMNS) + self.metrics.index(metric)
        return [row[column] for row in self.rows if row[2] == split and row[column] is not None]

    def _note(self) -> str:
        loss = "" if self._loss is None else f"loss {float(self._loss):.3f}"
        return ", ".join(text for text in (loss, self._validation_note, self._format_speed()) if text)

    def _format_speed(self) -> str:
        """Format images per second, a share of waiting of at least 10%, and the time left."""
        if not self._speed:
            return ""
        waiting = self._speed["waiting_share"]
        fields = [f"{self._speed['images_per_second']:.0f} images/s"]
        fields += [f"{waiting:.0%} waiting for data"] if waiting >= 0.1 else []
        seconds_left = self._steps_left * self._seconds_per_step
        fields += [f"{format_duration(seconds_left)} left"] if self._steps_left else []
        return ", ".join(fields)

    def state_dict(self) -> dict[str, Any]:
        self._reduce()  # Lightning calls this on all ranks
        return {
            "rows": self.rows,
            "unreadable": sorted(self.unreadable),
            "images": self.images_seen,
            "sums": self._sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.images_seen, self._sums = state["images"], list(state["sums"])
        self.unreadable = set(state["unreadable"])
        self.rows = state["rows"]
