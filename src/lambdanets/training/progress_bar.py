"""Progress of training: steps of the whole run, epoch, loss and speed."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lambdanets.progress import Progress
from lambdanets.training.run_log import RunLog


class TrainingProgress(Callback):
    """Shows progress on standard error. The loss is copied to the CPU only when it is shown."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._loss: Any = None
        self._validation_note = ""
        self._progress = Progress("training", total=0, unit="steps", note=self._note)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        steps_per_epoch = int(trainer.num_training_batches) // trainer.accumulate_grad_batches
        self._progress.total = steps_per_epoch * (trainer.max_epochs or 0)
        self._progress.done = trainer.global_step
        self._progress.__enter__()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._progress.__exit__()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self._progress.__exit__()

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
        return ", ".join(text for text in (loss, self._validation_note, self._log.format_speed()) if text)
