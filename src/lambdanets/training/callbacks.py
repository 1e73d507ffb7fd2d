"""What happens around steps: checkpoints, the best epoch, EMA, early stopping, and stopping on a signal."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, WeightAveraging
from torch import Tensor

from lambdanets.data.batches import Batches
from lambdanets.errors import InputError
from lambdanets.locks import Lock
from lambdanets.signals import heeded
from lambdanets.training.checkpoints import BEST
from lambdanets.training.processes import all_reduce_sum


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the optimizer has stepped after a batch, whose gradient was the last part of its step's."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def ends_epoch(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a batch is the last of its epoch."""
    return batch_idx + 1 >= trainer.num_training_batches


class KeepLast(Callback):
    """Keeps a checkpoint to resume from, written every `every` steps and after each epoch's validation.

    Not after the last step of an epoch: Lightning skips the validation of a run that resumes from there. And it keeps
    the place in the training images, which Lightning gives back in the middle of an epoch only.
    """

    def __init__(self, path: Path, every: int, training: Batches[Any], data: str) -> None:
        self.path = path
        self.every = every
        self.training = training
        self.data = data

    def state_dict(self) -> dict[str, Any]:
        return {"data": self.data, "parts": self.training.accumulation_steps, **self.training.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["data"] != self.data:
            raise InputError(
                "the data has changed since the run began: other images, names or classes; start a new run"
            )
        self.training.load_state_dict(state)

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning counts batches; with more or fewer processes a step has another number of them
        before, now = checkpoint["callbacks"]["KeepLast"]["parts"], self.training.accumulation_steps
        for counts in checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"].values():
            if isinstance(counts, dict):
                under_way = counts["processed"] - counts["completed"]  # the batch at whose end it was written
                counts.update({name: -(-count // before) * now for name, count in counts.items()})
                counts["completed"] = counts["processed"] - under_way

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (
            ends_step(trainer, batch_idx)
            and not ends_epoch(trainer, batch_idx)
            and trainer.global_step % self.every == 0
        ):
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        trainer.save_checkpoint(self.path)


class KeepBest(ModelCheckpoint):
    """Keeps best.ckpt, by a metric on the validation images, also in a folder that was moved or copied meanwhile."""

    def __init__(self, folder: Path, metric: str) -> None:
        super().__init__(
            folder,
            Path(BEST).stem,
            monitor=metric,
            mode="max",
            enable_version_counter=False,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=False,  # but before KeepLast, whose checkpoint is to know what is best
        )
        self._path = str(Path(str(self.dirpath)) / BEST)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # from another folder Lightning takes no score, so that any epoch would be the best
        scores = dict.fromkeys([self._path] if state["best_k_models"] else [], state["best_model_score"])
        here = self._path if scores else ""
        super().load_state_dict(
            state
            | {"dirpath": self.dirpath, "best_model_path": here, "kth_best_model_path": here, "best_k_models": scores}
        )


class AverageWeights(WeightAveraging):
    """Averages the trainable parameters; what is validated, kept as best and written at the end is the average.

    After step t, average += (1 - min(decay, (1 + t) / (10 + t))) (weights - average): TensorFlow's form, in which the
    first weights are soon forgotten. Buffers, such as batch norm's statistics, are the model's own.
    """

    def __init__(self, decay: float) -> None:
        @torch.no_grad()
        def average(averages: list[Tensor], weights: list[Tensor], steps: Tensor | int) -> None:
            kept = min(decay, (1 + int(steps)) / (10 + int(steps)))
            torch._foreach_lerp_(averages, weights, 1 - kept)

        super().__init__(use_buffers=False, multi_avg_fn=average)

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        super().setup(trainer, module, stage)
        if self._average_model is not None:
            self._average_model.n_averaged.fill_(1)  # at 0, torch would forget the weights from before the first step

    def take(self, module: LightningModule) -> None:
        """Put the averages into the model; where training ended before this process began, nothing else does."""
        self._copy_average_to_current(module)


class StopEarly(EarlyStopping):
    """Stops after `patience` epochs without a better metric; a run resumed after that stops again at once."""

    def __init__(self, metric: str, patience: int) -> None:
        # not at the end of the epoch, where KeepLast's checkpoint would be written before
        super().__init__(metric, mode="max", patience=patience, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


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
