"""The course of a run: metrics.csv, a line an epoch for people, and the images that could not be read."""

import csv
import io
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lambdanets.errors import InputError
from lambdanets.training.data.loader import Batch

COLUMNS = ("step", "epoch", "split", "loss", "top1")
# Training rows are means over this many steps.
STEPS_PER_ROW = 10


class History(Callback):
    """Keeps what a run measured, in its checkpoints too, so that a resumed run's metrics.csv has no gap or repeat.

    rows: one every STEPS_PER_ROW steps for training and one an epoch for validation. unreadable: a sentence for each
    image of the data that was skipped.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.csv"
        self.rows: list[list[Any]] = []
        self.unreadable: set[str] = set()
        self.images = 0
        self._sums = [0.0, 0.0, 0.0]  # steps, loss, top-1

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.rows:  # a run without a checkpoint begins again
            self.path.unlink(missing_ok=True)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: dict[str, Tensor] | None, batch: Batch, batch_idx: int
    ) -> None:
        self.images += len(batch.labels)
        self.unreadable.update(batch.unreadable)
        if outputs:
            steps, loss, top1 = self._sums
            self._sums = [steps + 1, loss + outputs["loss"].item(), top1 + outputs["correct"].item()]
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
        self.unreadable.update(batch.unreadable)

    def on_validation_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if "val_loss" not in trainer.callback_metrics:
            raise InputError(f"none of the validation images could be read; the first: {min(self.unreadable)}")
        loss, top1 = trainer.callback_metrics["val_loss"].item(), trainer.callback_metrics["top1"].item()
        epoch = trainer.current_epoch + 1
        self._add([trainer.global_step, epoch, "val", round(loss, 6), round(top1, 6)])
        trained = next((row for row in reversed(self.rows) if row[2] == "train"), None)
        training_loss = f"loss {trained[3]:.3f}  " if trained else ""
        trainer.print(f"epoch {epoch:>3}/{trainer.max_epochs}  {training_loss}val loss {loss:.3f}  top-1 {top1:.4f}")

    def _end_row(self, trainer: Trainer) -> None:
        steps, loss, top1 = self._sums
        if steps:
            row = [
                trainer.global_step,
                trainer.current_epoch + 1,
                "train",
                round(loss / steps, 6),
                round(top1 / steps, 6),
            ]
            self._add(row)
            self._sums = [0.0, 0.0, 0.0]

    def _add(self, row: list[Any]) -> None:
        self.rows.append(row)
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
        text = io.StringIO(newline="")
        csv.writer(text).writerows([COLUMNS, *self.rows])
        self.path.write_text(text.getvalue(), newline="")
