"""Stops training in an orderly way on SIGINT, SIGTERM or SIGHUP."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lambdanets.locks import Lock
from lambdanets.signals import heeded
from lambdanets.training.checkpoints import ends_epoch, ends_step
from lambdanets.training.processes import all_reduce_sum


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop, and did so between steps; its last checkpoint is there to go on from."""


class StopAfterStep(Callback):
    """On a signal, ends the run after the step under way, with a checkpoint; a second SIGINT ends it now.

    All processes stop after the same step, whichever of them got the signal. At the end of an epoch and in its
    validation there is no new checkpoint: the run resumes from the one before. lock: of the run's folder, in the first
    process; a run that has lost it ends before it writes another checkpoint.
    """

    def __init__(self, checkpoint: Path, lock: Lock | None = None) -> None:
        self.checkpoint = checkpoint
        self.lock = lock
        self.asked = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle signals while Lightning trains, whose own handling can stop in the middle of an optimizer step."""
        before = {number: signal.getsignal(number) for number in heeded()}
        try:
            self._handle()
            yield
        except SystemExit as end:  # what Lightning makes of a signal before the first step
            if not self.asked:
                raise
            raise Interrupted from end
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._handle()  # again, after Lightning has put its own handlers in place, which it takes back at the end

    def _handle(self) -> None:
        for number in heeded():
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise Interrupted
        self.asked = True  # schedulers and torchrun may both send SIGTERM

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if ends_step(trainer, batch_idx) and all_reduce_sum(self.asked)[0]:
            if not ends_epoch(trainer, batch_idx):
                trainer.save_checkpoint(self.checkpoint)
            raise Interrupted

    def on_validation_batch_end(self, *_: Any) -> None:
        if self.asked:
            raise Interrupted
        self._check_lock()

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._check_lock()

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()
