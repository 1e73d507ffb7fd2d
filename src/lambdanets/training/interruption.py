"""An orderly end on Ctrl-C or SIGTERM."""

import signal
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lambdanets.training.checkpoints import ends_epoch, ends_step
from lambdanets.training.processes import total


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop, and did so between steps; its last checkpoint is there to go on from."""


class StopAfterStep(Callback):
    """On SIGINT or SIGTERM, ends the run after the step under way, with a checkpoint; a second SIGINT ends it now.

    All processes stop after the same step, whichever of them was asked. At the end of an epoch and in its validation
    there is no new checkpoint: the run goes on from the one before.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        # after Lightning has put its own handlers in place, which it takes back at the end
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise Interrupted
        self.asked = True  # schedulers and torchrun may both send SIGTERM

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if ends_step(trainer, batch_idx) and total(self.asked)[0]:
            if not ends_epoch(trainer, batch_idx):
                trainer.save_checkpoint(self.checkpoint)
            raise Interrupted

    def on_validation_batch_end(self, *_: Any) -> None:
        if self.asked:
            raise Interrupted

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self._restore()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
