"""The course of a run: metrics.csv, a line an epoch for people, and the images that could not be read."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lambdanets.errors import InputError
from lambdanets.training.checkpoints import ends_step
from lambdanets.training.data.loader import Batch
from lambdanets.training.processes import Processes, together, total

COLUMNS = ("step", "epoch", "split", "loss", "top1")
# Training rows are means over the images of this many steps.
STEPS_PER_ROW = 10


class History(Callback):
    """Keeps what a run measured, in its checkpoints too, so that a resumed run's metrics.csv has no gap or repeat.

    rows: one every STEPS_PER_ROW steps for training and one an epoch for validation. unreadable: a sentence for each
    image of the data that was skipped, by whichever process; more than max_unreadable stop the run. Only the first
    process writes. after_epoch is called with the words about how fast it went, and gives those to print.
    """

    def __init__(self, folder: Path, these: Processes, max_unreadable: int, speed: Callable[[], str]) -> None:
        self.path = folder / "metrics.csv"
        self.rows: list[list[Any]] = []
        self.unreadable: set[str] = set()
        self.images = 0
        self._these = these
        self._max_unreadable = max_unreadable
        self._speed = speed
        self._sums = [0.0, 0.0, 0.0]  # images, loss, right ones, of all processes
        self._part = [0.0, 0.0, 0.0]  # of this process, in the step under way
        self._new: list[str] = []

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.rows and self._these.first:  # a run without a checkpoint begins again
            self.path.unlink(missing_ok=True)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: dict[str, Tensor] | None, batch: Batch, batch_idx: int
    ) -> None:
        self._new += [sentence for sentence in batch.unreadable if sentence not in self.unreadable]
        if outputs and "sum" in outputs:
            more = (len(batch.labels), outputs["sum"].item(), outputs["correct"].item())
            self._part = [before + new for before, new in zip(self._part, more, strict=True)]
        if not ends_step(trainer, batch_idx):
            return
        *step, unreadable = total(*self._part, len(self._new))
        self._part = [0.0, 0.0, 0.0]
        self.images += int(step[0])
        self._sums = [before + new for before, new in zip(self._sums, step, strict=True)]
        if unreadable:
            self._add_unreadable()
        if trainer.global_step % STEPS_PER_ROW == 0:
            self._end_row(trainer)

    def on_validation_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._end_row(trainer)
        if not self.rows:
            raise InputError(f"no training batch had two readable images; a bad one: {min(self.unreadable)}")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._new += [sentence for sentence in batch.unreadable if sentence not in self.unreadable]

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._add_unreadable()
        if "val_loss" not in trainer.callback_metrics:
            raise InputError(f"none of the validation images could be read; the first: {min(self.unreadable)}")
        loss, top1 = trainer.callback_metrics["val_loss"].item(), trainer.callback_metrics["top1"].item()
        epoch = trainer.current_epoch + 1
        self._add([trainer.global_step, epoch, "val", round(loss, 6), round(top1, 6)])
        trained = next((row for row in reversed(self.rows) if row[2] == "train"), None)
        training_loss = f"loss {trained[3]:.3f}  " if trained else ""
        trainer.print(
            f"epoch {epoch:>3}/{trainer.max_epochs}  {training_loss}val loss {loss:.3f}  top-1 {top1:.4f}  "
            f"{self._speed()}".rstrip()
        )

    def _add_unreadable(self) -> None:
        self.unreadable.update(together(self._new))
        self._new = []
        if len(self.unreadable) > self._max_unreadable:
            some = "; ".join(sorted(self.unreadable)[:3])
            raise InputError(
                f"{len(self.unreadable)} images could not be read, and max_unreadable is {self._max_unreadable}: {some}"
            )

    def _end_row(self, trainer: Trainer) -> None:
        images, loss, right = self._sums
        if images:
            epoch = trainer.current_epoch + 1
            self._add([trainer.global_step, epoch, "train", round(loss / images, 6), round(right / images, 6)])
            self._sums = [0.0, 0.0, 0.0]

    def _add(self, row: list[Any]) -> None:
        self.rows.append(row)
        if self._these.first:
            new = not self.path.exists()
            with self.path.open("a", newline="") as file:
                writer = csv.writer(file)
                writer.writerows([COLUMNS, row] if new else [row])

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "unreadable": sorted(self.unreadable),
            "images": self.images,
            "sums": self._sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.images, self._sums = list(state["rows"]), state["images"], list(state["sums"])
        self.unreadable = set(state["unreadable"])
        if self._these.first:
            text = io.StringIO(newline="")
            csv.writer(text).writerows([COLUMNS, *self.rows])
            self.path.write_text(text.getvalue(), newline="")
