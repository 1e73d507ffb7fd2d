"""Checkpoints: when they are written, atomically; the newest readable one; whether it belongs to the run."""

import io
import math
import signal
import sys
import zipfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lambdanets.data.batches import Batches
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open
from lambdanets.inference.model_card import read_card
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.terminal import echo
from lambdanets.training.module import TrainingModule
from lambdanets.training.recipe import parse_recipe
from lambdanets.training.run_log import RunLog
from lambdanets.training.task import Task

LAST = "last.ckpt"
BEST = "best.ckpt"
PREVIOUS = "before.ckpt"  # the previous last.ckpt, used if last.ckpt is damaged


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically and keeps the previous last.ckpt."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(path, path.with_name(PREVIOUS) if path.name == LAST else None) as file:
            file.write(content.getbuffer())


class Interrupted(Exception):  # noqa: N818
    """The run was stopped by a signal; it can be resumed from its last checkpoint."""


class Checkpoints(Callback):
    """Writes checkpoints, and stops the run on a signal or early.

    last.ckpt is written every `checkpoint_every` steps and after each epoch's validation, but not between the last step
    of an epoch and its validation, because Lightning would skip the validation when the run resumes. The position in
    the training data is stored here, because Lightning restores the state of a data loader only in the middle of an
    epoch. best.ckpt has the highest validation metric of all epochs. After `task.patience` epochs without improvement
    the run stops, also at once if it is resumed later.

    On a signal, the step is finished and a checkpoint written; a second SIGINT stops at once. All ranks stop after the
    same step, even if only one of them received the signal, and several ranks end a validation first.
    """

    state_key = "KeepLast"  # its name in checkpoints, also in those of earlier versions

    def __init__(self, folder: Path, task: Task, training_batches: Batches, log: RunLog) -> None:
        self.folder, self.task, self.training_batches, self.run_log = folder, task, training_batches, log
        self.signaled = False

    def state_dict(self) -> dict[str, Any]:
        parts = self.training_batches.batch_slice.accumulation_steps
        return {"data": self.task.fingerprint, "parts": parts, **self.training_batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.training_batches.load_state_dict(state)

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning counts micro-batches; their number per step changes with the world size
        old_steps = checkpoint["callbacks"][self.state_key]["parts"]
        new_steps = self.training_batches.batch_slice.accumulation_steps
        for counts in checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"].values():
            if isinstance(counts, dict):
                in_progress = counts["processed"] - counts["completed"]  # 1 if written in on_train_batch_end
                counts.update({name: -(-count // old_steps) * new_steps for name, count in counts.items()})
                counts["completed"] = counts["processed"] - in_progress

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal while the run trains; the trainer of `run.py` has switched off Lightning's own handlers."""
        if self.signaled and signum == signal.SIGINT:
            raise Interrupted
        self.signaled = True  # schedulers and torchrun may both send SIGTERM

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
        if self.signaled and trainer.world_size == 1:
            raise Interrupted

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        *earlier, value = self._metric_by_epoch()
        if not earlier or value > max(earlier):
            trainer.save_checkpoint(self.folder / BEST)
        self._stop_early(trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        trainer.save_checkpoint(self.folder / LAST)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self._is_signaled():  # in the last validation
            raise Interrupted

    def _is_signaled(self) -> bool:
        """Whether a rank has received a signal. Waits for the others."""
        ranks = torch.tensor(int(self.signaled))
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


def find_resumable(folder: Path, task: Task) -> Path | None:
    """Return the newest undamaged checkpoint of a run; None if there are no checkpoints.

    The task gets its weights. If last.ckpt is damaged, it is renamed to
    last.damaged, with a message, and the previous one is returned. Raises InputError if that one is
    damaged or missing, or if the checkpoint is from a run of another recipe or on other data.
    """
    damage, advice = "", f"remove {LAST} and {PREVIOUS} in {folder} to restart the run; {BEST} can still be evaluated"
    for path in filter(Path.is_file, (folder / LAST, folder / PREVIOUS)):
        try:
            tensors, state = read_weights(path)
            with zipfile.ZipFile(path) as archive:
                if member := archive.testzip():  # torch.load does not verify checksums
                    raise InputError(f"the checksum of {member} in it is wrong")
            saved = parse_recipe(read_card(path, state).recipe, path)
            fingerprint = state["callbacks"][Checkpoints.state_key]["data"]
        except (InputError, KeyError, TypeError, zipfile.BadZipFile) as error:
            damage = damage or f"{path} is damaged: {one_line(error)}; {advice}"
            continue
        if saved.identity() != task.recipe.identity():
            raise InputError(f"{path} has another recipe than the run's recipe.json; {advice}")
        if fingerprint != task.fingerprint:
            raise InputError(
                "the data has changed since the run started (images, file names or classes); start a new run"
            )
        load_tensors(task.model, tensors, str(path))
        task.initial_weights = state["initial_weights"]
        if damage:
            echo(f"{folder / LAST} is damaged; renamed to last.damaged, resuming from {path.name}", file=sys.stderr)
            (folder / LAST).replace(folder / "last.damaged")
        return path
    if damage:
        raise InputError(damage)
    return None
