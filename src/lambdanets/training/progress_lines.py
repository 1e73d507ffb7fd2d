"""The progress of training where no terminal watches: epoch, step, loss, speed and the time left, in lines."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lambdanets.progress import Progress
from lambdanets.training.speed import Speed


class ProgressLines(Callback):
    """Lines on standard error, as `lambdanets.progress` writes them. The loss is read only when a line is due."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._loss: Any = None
        self._validating = ""
        self._progress = Progress("training", unit="steps", note=self._note)

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._progress.__enter__()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._progress.__exit__(None, None, None)

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self._progress.__exit__(None, None, None)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        per_epoch = int(trainer.num_training_batches) // trainer.accumulate_grad_batches
        self._progress.total = per_epoch * (trainer.max_epochs or 0)
        self._progress.done = trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._progress.label = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._progress.done = trainer.global_step
        self._validating = ""
        if outputs:  # a batch without readable images has none
            self._loss = outputs["loss"].detach()

    def on_validation_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._validating = f"validating, batch {batch_idx + 1:,}"

    def _note(self) -> str:
        loss = "" if self._loss is None else f"loss {float(self._loss):.3f}"
        return ", ".join(part for part in (loss, self._validating, self._speed.words()) if part)
