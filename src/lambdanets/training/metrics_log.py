"""Logs the metrics of a run: metrics.csv, one printed line per epoch, and the list of unreadable images."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from lightning.pytorch import Callback, LightningModule, Trainer

from lambdanets.data.readable import check_unreadable
from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.training.callbacks import ends_step
from lambdanets.training.distributed import World, all_gather_lists, all_reduce_sum
from lambdanets.training.module import TrainingModule

# Step, epoch, split, and one value per metric; None if a metric was not measured.
Row = list[Any]
METRICS = "metrics.csv"
COLUMNS = ("step", "epoch", "split")
# Number of steps that are averaged in a training row.
STEPS_PER_ROW = 10


class HasUnreadable(Protocol):
    """A batch, with one message per unreadable image."""

    unreadable: list[str]


def append_row(path: Path, columns: Sequence[str], row: Sequence[Any]) -> None:
    """Append a row to a CSV file. A new file starts with a header. A link is replaced, as by atomic writes."""
    if path.is_symlink():
        path.unlink()
    new = not path.exists()
    with path.open("a", newline="") as file:
        csv.writer(file).writerows([columns, row] if new else [row])


class MetricsLog(Callback):
    """Collects metrics over all ranks and writes metrics.csv on rank zero.

    The rows are also stored in checkpoints. Thus metrics.csv of a resumed run has each step exactly once.

    metrics: columns of metrics.csv after the first three. rows: one per STEPS_PER_ROW training steps and one per
    validation. unreadable: one message per skipped image, over all ranks. max_unreadable: the run stops if more images
    are unreadable. format_speed: returns the speed as text for the line that is printed after an epoch.
    """

    state_key = "History"  # its name in checkpoints

    def __init__(
        self,
        folder: Path,
        metrics: Sequence[str],
        world: World,
        max_unreadable: int,
        format_speed: Callable[[], str],
    ) -> None:
        self.path = folder / METRICS
        self.metrics = tuple(metrics)
        self.rows: list[Row] = []
        self.unreadable: set[str] = set()
        self.images_seen = 0
        self._world = world
        self._max_unreadable = max_unreadable
        self._format_speed = format_speed
        self._sums: list[float] = []  # number of images and the module's SUMS since the last row, over all ranks
        self._step_sums: list[float] = []  # the same for this rank and the current step
        self._new_unreadable: list[str] = []  # messages of this rank that are not yet in `unreadable`

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.rows and self._world.is_rank_zero:  # the run (re)starts without a checkpoint
            self.path.unlink(missing_ok=True)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: dict[str, Any] | None,
        batch: HasUnreadable,
        batch_idx: int,
    ) -> None:
        assert isinstance(module, TrainingModule)
        zeros = [0.0] * (1 + len(module.SUMS))
        self._new_unreadable += [message for message in batch.unreadable if message not in self.unreadable]
        if outputs and "sums" in outputs:
            sums = [outputs["images"], *outputs["sums"].tolist()]
            self._step_sums = [total + value for total, value in zip(self._step_sums or zeros, sums, strict=True)]
        if not ends_step(trainer, batch_idx):
            return
        *step_sums, unreadable = all_reduce_sum(*(self._step_sums or zeros), len(self._new_unreadable))
        self._step_sums = []
        self.images_seen += int(step_sums[0])
        self._sums = [total + value for total, value in zip(self._sums or zeros, step_sums, strict=True)]
        if unreadable:
            self._add_unreadable()
        if trainer.global_step % STEPS_PER_ROW == 0:
            self._add_training_row(trainer, module)

    def on_validation_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        self._add_training_row(trainer, module)
        if not self.rows:
            reason = min(self.unreadable, default="the images are too small")
            required = "two readable images" if module.recipe.MIN_MICRO_BATCH > 1 else "a readable image"
            raise InputError(f"no training batch had {required}: {reason}")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: Any,
        batch: HasUnreadable,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._new_unreadable += [message for message in batch.unreadable if message not in self.unreadable]

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        self._add_unreadable()
        if not module.validation_metrics:
            raise InputError(f"no validation image could be read; the first error: {min(self.unreadable)}")
        epoch = trainer.current_epoch + 1
        self._add_row(trainer, "val", module.validation_metrics)
        last_training_row = next((row for row in reversed(self.rows) if row[2] == "train"), None)
        training_loss = f"loss {last_training_row[3]:.3f}  " if last_training_row else ""
        validation_metrics = module.format_validation_metrics()
        trainer.print(
            f"epoch {epoch:>3}/{trainer.max_epochs}  {training_loss}{validation_metrics}  {self._format_speed()}"
        )

    def _add_unreadable(self) -> None:
        self.unreadable.update(all_gather_lists(self._new_unreadable))
        self._new_unreadable = []
        check_unreadable(sorted(self.unreadable), self._max_unreadable)

    def _add_training_row(self, trainer: Trainer, module: TrainingModule) -> None:
        if self._sums and self._sums[0]:
            images, *sums = self._sums
            self._add_row(trainer, "train", {name: sum / images for name, sum in zip(module.SUMS, sums, strict=True)})
            self._sums = []

    def _add_row(self, trainer: Trainer, split: str, metrics: dict[str, float]) -> None:
        values = [round(metrics[name], 6) if name in metrics else None for name in self.metrics]
        row = [trainer.global_step, trainer.current_epoch + 1, split, *values]
        self.rows.append(row)
        if self._world.is_rank_zero:
            append_row(self.path, [*COLUMNS, *self.metrics], row)
        logged = {
            f"{name}/{split}": value for name, value in zip(self.metrics, values, strict=True) if value is not None
        }
        if split == "train":
            logged["learning_rate"] = trainer.optimizers[0].param_groups[-1]["lr"]
        for logger in trainer.loggers:
            logger.log_metrics(logged, trainer.global_step)

    def values(self, split: str, metric: str) -> list[float]:
        """Return all values of a metric in order of the steps."""
        column = len(COLUMNS) + self.metrics.index(metric)
        return [row[column] for row in self.rows if row[2] == split and row[column] is not None]

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "unreadable": sorted(self.unreadable),
            "images": self.images_seen,
            "sums": self._sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.images_seen, self._sums = list(state["rows"]), state["images"], list(state["sums"])
        self.unreadable = set(state["unreadable"])
        if self._world.is_rank_zero:
            text = io.StringIO(newline="")
            csv.writer(text).writerows([[*COLUMNS, *self.metrics], *self.rows])
            atomic_write(self.path, text.getvalue().encode())  # removes rows that were written after the checkpoint
