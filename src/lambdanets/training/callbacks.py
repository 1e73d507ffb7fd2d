"""Callbacks: checkpoints, EMA, early stopping, and stopping on a signal."""

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
from lambdanets.signals import handled_signals
from lambdanets.training.checkpoints import BEST
from lambdanets.training.distributed import all_reduce_sum


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the optimizer steps after this micro-batch."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def ends_epoch(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a micro-batch is the last of its epoch."""
    return batch_idx + 1 >= trainer.num_training_batches


class KeepLast(Callback):
    """Writes last.ckpt every `every` steps and after each epoch's validation, with the position in the training data.

    Not after the last step of an epoch: Lightning skips the validation of a run that resumes there. Lightning restores
    the state of a data loader in the middle of an epoch only, so it is stored here.
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
                "the data has changed since the run started: other images, names or classes; start a new run"
            )
        self.training.load_state_dict(state)

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning counts micro-batches, and another world size has another number of them per step
        before, now = checkpoint["callbacks"]["KeepLast"]["parts"], self.training.accumulation_steps
        for counts in checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"].values():
            if isinstance(counts, dict):
                in_progress = counts["processed"] - counts["completed"]  # the batch at whose end it was written
                counts.update({name: -(-count // before) * now for name, count in counts.items()})
                counts["completed"] = counts["processed"] - in_progress

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
    """Keeps best.ckpt by a validation metric, also if the run folder was moved or copied since."""

    def __init__(self, folder: Path, metric: str) -> None:
        super().__init__(
            folder,
            Path(BEST).stem,
            monitor=metric,
            mode="max",
            enable_version_counter=False,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=False,  # after validation instead, so that last.ckpt knows the best score
        )
        self._path = str(Path(str(self.dirpath)) / BEST)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Lightning drops the scores of another folder, and any epoch would then be the best
        scores = dict.fromkeys([self._path] if state["best_k_models"] else [], state["best_model_score"])
        here = self._path if scores else ""
        super().load_state_dict(
            state
            | {"dirpath": self.dirpath, "best_model_path": here, "kth_best_model_path": here, "best_k_models": scores}
        )


class EMA(WeightAveraging):
    """EMA of the trainable parameters, which is validated, kept as best.ckpt and saved at the end.

    After step t: ema += (1 - min(decay, (1 + t) / (10 + t))) (weights - ema), as in TensorFlow, so that the initial
    weights fade quickly. Buffers, such as the statistics of batch norm, are not averaged.
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
            self._average_model.n_averaged.fill_(1)  # at 0, torch would copy the weights after the first step

    def copy_to(self, module: LightningModule) -> None:
        """Copy the EMA weights into the model, also where training had ended before this process was started."""
        self._copy_average_to_current(module)


class StopEarly(EarlyStopping):
    """Stops after `patience` epochs without a better metric; a run that is resumed after that stops again at once."""

    def __init__(self, metric: str, patience: int) -> None:
        # after validation instead, so that last.ckpt has the state
        super().__init__(metric, mode="max", patience=patience, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


class Interrupted(Exception):  # noqa: N818
    """The run was stopped by a signal; it can be resumed from its last checkpoint."""


class StopOnSignal(Callback):
    """On a signal, finishes the step, writes a checkpoint and stops; a second SIGINT stops at once.

    All ranks stop after the same step, whichever of them received the signal. At the end of an epoch and in its
    validation no new checkpoint is written. lock: that of the run folder, on rank zero; a run that has lost it stops
    before it writes anything.
    """

    def __init__(self, checkpoint: Path, lock: Lock | None = None) -> None:
        self.checkpoint = checkpoint
        self.lock = lock
        self.signaled = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle signals here; Lightning's own handlers can stop in the middle of an optimizer step."""
        before = {number: signal.getsignal(number) for number in handled_signals()}
        try:
            self._install()
            yield
        except SystemExit as end:  # Lightning raises it for a signal before the first step
            if not self.signaled:
                raise
            raise Interrupted from end
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._install()  # again, as Lightning installs its own handlers in between

    def _install(self) -> None:
        for number in handled_signals():
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signaled and number == signal.SIGINT:
            raise Interrupted
        self.signaled = True  # schedulers and torchrun may both send SIGTERM

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if ends_step(trainer, batch_idx) and all_reduce_sum(self.signaled)[0]:
            if not ends_epoch(trainer, batch_idx):
                trainer.save_checkpoint(self.checkpoint)
            raise Interrupted

    def on_validation_batch_end(self, *_: Any) -> None:
        if self.signaled:
            raise Interrupted
        self._check_lock()

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._check_lock()

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()
