"""Checkpoints that are whole or not there."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

LAST = "last.ckpt"


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it there: a kill or a full disk leaves the one before intact."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        try:
            with unfinished.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def checkpoints(folder: Path, every: int) -> list[Callback]:
    """The callbacks that keep `last.ckpt`, every so many steps, and `best.ckpt` by top-1."""
    common = {"dirpath": folder, "enable_version_counter": False, "auto_insert_metric_name": False}
    return [
        ModelCheckpoint(filename="last", every_n_train_steps=every, **common),
        ModelCheckpoint(filename="best", monitor="top1", mode="max", **common),
    ]
