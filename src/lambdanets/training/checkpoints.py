"""Checkpoints that are whole or not there."""

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from lambdanets.errors import InputError
from lambdanets.files import write_whole
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.training.data.datasets import Splits
from lambdanets.training.data.loader import ImageBatches
from lambdanets.training.data.shards import ShardedImages
from lambdanets.training.recipe import Recipe

LAST = "last.ckpt"


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints so that a kill or a full disk leaves the one before intact."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(Path(path), content.getbuffer())


class KeepLast(Callback):
    """Keeps one checkpoint to go on from, renewed every so many steps and after each epoch's validation.

    Not after the last step of an epoch: Lightning takes a run that goes on from there past the validation. And it keeps
    the place in the training images, which Lightning gives back in the middle of an epoch only.
    """

    def __init__(self, path: Path, every: int, training: ImageBatches, data: str) -> None:
        self.path = path
        self.every = every
        self.training = training
        self.data = data

    def state_dict(self) -> dict[str, Any]:
        return {"data": self.data, **self.training.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["data"] != self.data:
            raise InputError(
                "the data has changed since the run began: other images, names or classes; start a new run"
            )
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


def fingerprint(splits: Splits) -> str:
    """A hash of the classes, and of each image's file name and class, without reading one. Shards have their own."""
    digest = hashlib.sha256(repr(splits.classes).encode())
    for images in (splits.train, splits.validation):
        if isinstance(images, ShardedImages):
            digest.update(images.fingerprint.encode())
            continue
        for index, label in enumerate(images.labels):
            digest.update(f"{Path(images.name(index)).name!r} {label}\n".encode())
    return digest.hexdigest()


def check_resumable(path: Path, model: nn.Module, recipe: Recipe, classes: tuple[str, ...]) -> None:
    """Raise InputError unless the file is a whole checkpoint of a run of the recipe, on data with these classes.

    Where the data lies, the weights the run began with and what does not change the result may differ.
    """
    advice = f"remove {path} to start the run again; best.ckpt beside it, if whole, can still be evaluated"
    try:
        tensors, rest = read_weights(path)
        if "fit_loop" not in rest["loops"] or "KeepLast" not in rest["callbacks"]:
            raise KeyError
        content = json.loads(rest["lambdanets"])
        begun = Recipe.from_fields(content["recipe"], str(path))
    except InputError as error:
        raise InputError(f"{error}; {advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} holds weights and not the state of a run; {advice}") from error
    free: dict[str, Any] = {"data": "", "data_root": None, "weights": None, "workers": 0, "checkpoint_every": 1}
    if replace(begun, **free) != replace(recipe, **free):
        raise InputError(f"{path} is of another recipe than the run's recipe.json; {advice}")
    if tuple(content["classes"]) != classes:
        raise InputError(f"the data has other classes than when the run began; start a new run, or {advice}")
    load_tensors(model, tensors, str(path))
