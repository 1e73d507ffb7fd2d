"""What a run does after each step and epoch: it logs, then it writes checkpoints, from which it resumes, or stops."""

import math
import time
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

import psutil
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.tensorboard import SummaryWriter

from lambdanets import signals
from lambdanets.data.batches import Batches
from lambdanets.data.images import check_unreadable
from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.progress import Progress
from lambdanets.terminal import csv_table, echo
from lambdanets.training.distributed import all_gather_lists
from lambdanets.training.module import TrainingModule
from lambdanets.training.task import Task

LAST, BEST = "last.ckpt", "best.ckpt"
METRICS = "metrics.csv"
COLUMNS = ("step", "epoch", "split")
SPEED = ("images_per_second", "waiting_share", "process_gib", "gpu_gib")
STEPS_PER_ROW = 10  # about: the rows of an epoch have the same length, since a mean over fewer steps looks like a jump


class RunLog(Callback):
    """The log of all ranks: metrics.csv, TensorBoard, progress, a printed line per epoch, and unreadable images.

    A training row is the mean of about STEPS_PER_ROW steps, a validation row ends an epoch. The columns are step,
    epoch, split, the task's metrics, images per second over all ranks, the share of the time spent waiting for data,
    and the memory of rank 0. On a GPU, only a row and a checkpoint wait for its steps. Rows are stored in checkpoints:
    a resumed run has each step once.

    unreadable: one message per skipped image, over all ranks; with more than the recipe's limit the run stops.
    """

    state_key = "History"  # its name in checkpoints, also in those of earlier versions

    def __init__(self, folder: Path, task: Task) -> None:
        self.path = folder / METRICS
        self.metrics = tuple(dict.fromkeys((*task.TRAINING_METRICS, *task.VALIDATION_METRICS)))
        self.rows: list[list[Any]] = []  # lines of metrics.csv; None where nothing was measured
        self.unreadable: set[str] = set()
        self._columns = (*COLUMNS, *self.metrics, *SPEED)
        self._task = task
        # images and losses since the last row, of this rank
        self._sums = torch.zeros(1 + len(task.TRAINING_METRICS), dtype=torch.float64)
        self._progress = Progress("training", 0, "steps", disable=True)
        self._writer: SummaryWriter | None = None  # of TensorBoard, on rank 0

    def on_train_start(self, trainer: Trainer, module: TrainingModule) -> None:
        self._sums = self._sums.to(module.device)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # of micro-batches that were tried, and of earlier runs
        if trainer.is_global_zero:
            # removes rows that were written after the checkpoint
            atomic_write(self.path, csv_table([self._columns, *self.rows]))
            # TensorBoard discards rows that were written after the checkpoint
            self._writer = SummaryWriter(self.path.with_name("tensorboard"), purge_step=trainer.global_step + 1)
            total = module.steps_per_epoch * (trainer.max_epochs or 0)
            self._progress = Progress("training", total, "steps", initial=trainer.global_step)
        else:
            self._sums.zero_()  # rank 0 has those of all ranks
        self.on_train_epoch_start(trainer, module)  # a run that resumes in the middle of an epoch does not call it

    def close(self) -> None:
        """End the progress bar and TensorBoard's thread."""
        self._progress.close()
        if self._writer is not None:
            self._writer.close()

    def on_train_epoch_start(self, trainer: Trainer, module: TrainingModule) -> None:
        self._start_clock()
        self._progress.set_description_str(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}", refresh=False)

    def _start_clock(self) -> None:
        self._started = time.perf_counter()
        self._waited, self._images = 0.0, 0

    def on_train_batch_start(self, trainer: Trainer, module: TrainingModule, batch: Any, batch_idx: int) -> None:
        self._waited += time.perf_counter() - max(self._started, module.batch_end)

    def on_train_batch_end(
        self, trainer: Trainer, module: TrainingModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.unreadable.update(batch.unreadable)
        if "sums" in outputs:
            self._sums[0] += outputs["images"]
            self._sums[1:] += outputs["sums"]
        if module.ends_step:
            self._images += batch.step_images
            self._progress.update()
            rows = max(1, round(module.steps_per_epoch / STEPS_PER_ROW))  # of an epoch
            if trainer.global_step * rows % module.steps_per_epoch < rows:
                self._add_training_row(trainer, module)

    def on_validation_epoch_start(self, trainer: Trainer, module: TrainingModule) -> None:
        if not self.rows:
            reason = min(self.unreadable, default="the images are too small")
            raise InputError(f"no training batch had images that can be trained on: {reason}")

    def on_validation_batch_start(
        self, trainer: Trainer, module: TrainingModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.unreadable.update(batch.unreadable)
        self._progress.note(f"validating, batch {batch_idx + 1:,}")

    def on_validation_end(self, trainer: Trainer, module: TrainingModule) -> None:
        self._gather()
        self._progress.note("")
        if not module.validation_metrics:
            raise InputError(f"no validation image could be read; the first error: {min(self.unreadable)}")
        self._add_row(trainer, "val", module.validation_metrics)
        if trainer.is_global_zero:
            loss, speed, waiting = self._means_of_epoch(trainer.current_epoch * module.steps_per_epoch)
            epoch = f"epoch {trainer.current_epoch + 1:>3}/{trainer.max_epochs}"
            end = f"  {waiting:.0%} waiting for data" if waiting >= 0.1 else ""
            metrics = "  ".join(f"val {name} {value:.4f}" for name, value in module.validation_metrics.items())
            echo(f"{epoch}  loss {loss:.3f}  {metrics}  {speed:.0f} images/s{end}")

    def _means_of_epoch(self, first_step: int) -> tuple[float, float, float]:
        """Return loss, images per second and waiting share of the rows after `first_step`, which are equally long."""
        losses, speeds, shares = (
            [value for step, value in self.points("train", name) if step > first_step]
            for name in ("loss", "images_per_second", "waiting_share")
        )
        if not losses:  # all images of the epoch were left out
            return math.nan, 0.0, 0.0
        return fmean(losses), harmonic_mean(speeds), fmean(shares, [1 / speed for speed in speeds])

    def _gather(self) -> list[float]:
        """Collect the messages of all ranks; return the sums over ranks. On a GPU, this waits for its steps."""
        by_rank = all_gather_lists([(self._sums.tolist(), self.unreadable)])
        self.unreadable = set().union(*(texts for _, texts in by_rank))
        check_unreadable(sorted(self.unreadable), self._task.recipe.max_unreadable)
        return [sum(column) for column in zip(*(sums for sums, _ in by_rank), strict=True)]

    def _add_training_row(self, trainer: Trainer, module: TrainingModule) -> None:
        images, *sums = self._gather()
        if not images:
            return
        self._sums.zero_()
        means = {name: x / images for name, x in zip(self._task.TRAINING_METRICS, sums, strict=True)}
        module.check_finite(means["loss"])
        seconds = max(time.perf_counter() - self._started, 1e-9)
        speed = {
            "images_per_second": self._images / seconds,
            "waiting_share": self._waited / seconds,
            "process_gib": psutil.Process().memory_info().rss / 2**30,
            "gpu_gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0,
        }
        self._progress.note(f"loss {means['loss']:.3f}, {speed['images_per_second']:.0f} images/s")
        self._add_row(trainer, "train", means | speed)
        self._start_clock()

    def _add_row(self, trainer: Trainer, split: str, values: dict[str, float]) -> None:
        values = {name: round(value, 6) for name, value in values.items()}
        row = [trainer.global_step, trainer.current_epoch + 1, split]
        row += [values.get(name) for name in self._columns[len(COLUMNS) :]]
        self.rows.append(row)
        if self._writer is None:
            return
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(csv_table([row]))
        for name, value in values.items():
            self._writer.add_scalar(f"speed/{name}" if name in SPEED else f"{name}/{split}", value, row[0])
        if split == "train":
            schedule: Any = trainer.lr_scheduler_configs[0].scheduler  # which has set that of the next step
            rate = schedule.base_lrs[-1] * schedule.lr_lambdas[-1](trainer.global_step - 1)
            self._writer.add_scalar("learning_rate", rate, row[0])
        self._writer.flush()  # a row that is in a checkpoint is then also in the event file

    def points(self, split: str, metric: str) -> list[tuple[int, float]]:
        """Return the steps and values of a metric."""
        column = self._columns.index(metric)
        return [(row[0], row[column]) for row in self.rows if row[2] == split and row[column] is not None]

    def state_dict(self) -> dict[str, Any]:  # Lightning calls this on all ranks
        sums, unreadable = self._gather(), sorted(self.unreadable)
        return {"rows": self.rows, "unreadable": unreadable, "sums": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.unreadable = state["rows"], set(state["unreadable"])
        self._sums = torch.tensor(state["sums"], dtype=torch.float64)


class Interrupted(Exception):  # noqa: N818
    """A signal stops the run, which has its last checkpoint. Lightning would handle a KeyboardInterrupt itself."""


class Checkpoints(Callback):
    """Writes checkpoints, and stops the run on a signal or early.

    last.ckpt is written every `checkpoint_every` steps and after each epoch's validation, but not between the last step
    of an epoch and its validation, because Lightning would skip the validation when the run resumes. It has the
    position in the training data (`Task.position`), since Lightning restores the state of a loader only in mid-epoch.
    best.ckpt has the highest validation metric of all epochs. After `task.patience` epochs without improvement the run
    stops, also at once if it is resumed later.

    On a signal, the step is finished and a checkpoint written. All ranks stop after the same step, even if only one of
    them received the signal, and several ranks end a validation first.
    """

    state_key = "KeepLast"  # its name in checkpoints, also in those of earlier versions

    def __init__(self, folder: Path, task: Task, training_batches: Batches, log: RunLog) -> None:
        self.folder, self.task, self.training_batches, self.run_log = folder, task, training_batches, log

    def state_dict(self) -> dict[str, Any]:
        parts = self.training_batches.batch_slice.accumulation_steps
        return {"data": self.task.fingerprint, "parts": parts, **self.training_batches.state_dict()}

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning counts micro-batches; their number per step changes with the world size
        old_steps = checkpoint["callbacks"][self.state_key]["parts"]
        new_steps = self.training_batches.batch_slice.accumulation_steps
        for counts in checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"].values():
            if isinstance(counts, dict):
                in_progress = counts["processed"] - counts["completed"]  # 1 if written in on_train_batch_end
                counts.update({name: -(-count // old_steps) * new_steps for name, count in counts.items()})
                counts["completed"] = counts["processed"] - in_progress

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._stop_early(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, module: TrainingModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not module.ends_step:
            return
        stops = self._is_signaled()
        ends_epoch = batch_idx + 1 >= trainer.num_training_batches
        if not ends_epoch and (stops or trainer.global_step % self.task.recipe.checkpoint_every == 0):
            trainer.save_checkpoint(self.folder / LAST)
        if stops:
            raise Interrupted

    def on_validation_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if signals.arrived and trainer.world_size == 1:
            raise Interrupted

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        *earlier, value = self._metric_by_epoch()
        if not earlier or value > max(earlier):
            trainer.save_checkpoint(self.folder / BEST)
        self._stop_early(trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        trainer.save_checkpoint(self.folder / LAST)
        if self._is_signaled():  # in the validation
            raise Interrupted

    def _is_signaled(self) -> bool:
        """Whether a rank has received a signal. Waits for the others."""
        ranks = torch.tensor(int(signals.arrived))
        if dist.is_initialized():
            dist.all_reduce(ranks)
        return bool(ranks)

    def _stop_early(self, trainer: Trainer) -> None:
        values, patience = self._metric_by_epoch(), self.task.patience
        if values and patience and len(values) - 1 - values.index(max(values)) >= patience:
            trainer.should_stop = True

    def _metric_by_epoch(self) -> list[float]:
        """Return the metric that selects best.ckpt after each epoch; -inf where no image has objects."""
        values = [value for _, value in self.run_log.points("val", self.task.BEST_METRIC)]
        return [-math.inf if math.isnan(value) else value for value in values]
