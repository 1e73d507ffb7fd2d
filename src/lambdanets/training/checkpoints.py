"""Checkpoints that are whole or not there."""

import io
import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lambdanets.training.data.loader import ImageBatches

LAST = "last.ckpt"


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file beside its place and rename it there, so that it is whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints so that a kill or a full disk leaves the one before intact."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_whole(Path(path), content.getbuffer())


class KeepLast(Callback):
    """Keeps one checkpoint to go on from, renewed every so many steps and after each epoch's validation.

    Not after the last step of an epoch: Lightning takes a run that goes on from there past the validation. And it keeps
    the place in the training images, which Lightning gives back in the middle of an epoch only.
    """

    def __init__(self, path: Path, every: int, training: ImageBatches) -> None:
        self.path = path
        self.every = every
        self.training = training

    def state_dict(self) -> dict[str, int]:
        return self.training.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.training.load_state_dict(state)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every == 0 and not is_last_step(trainer, batch_idx):
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        trainer.save_checkpoint(self.path)


def is_last_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a batch is the last of its epoch."""
    return batch_idx + 1 >= trainer.num_training_batches


def keep_best(folder: Path) -> ModelCheckpoint:
    """The callback that keeps best.ckpt, by top-1 on the validation images."""
    return ModelCheckpoint(
        folder, "best", monitor="top1", mode="max", enable_version_counter=False, auto_insert_metric_name=False
    )
