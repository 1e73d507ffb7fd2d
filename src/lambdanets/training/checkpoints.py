"""Checkpoints that are whole or not there."""

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from lambdanets.data.batches import Batches
from lambdanets.errors import InputError
from lambdanets.files import whole_file
from lambdanets.locks import Lock
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.terminal import say
from lambdanets.training.recipe import TrainingRecipe

LAST = "last.ckpt"
BEST = "best.ckpt"
BEFORE = "before.ckpt"  # the one before the last, should the last be damaged


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints so that a kill or a full disk leaves the one before intact, and keeps that one too.

    lock: of the folder. Whoever has lost it writes none.
    """

    def __init__(self, lock: Lock | None = None) -> None:
        super().__init__()
        self.lock = lock

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        if self.lock is not None:
            self.lock.check()
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, path.with_name(BEFORE) if path.name == LAST else None) as file:
            file.write(content.getbuffer())


class KeepLast(Callback):
    """Keeps a checkpoint to go on from, renewed every so many steps and after each epoch's validation.

    Not after the last step of an epoch: Lightning takes a run that goes on from there past the validation. And it keeps
    the place in the training images, which Lightning gives back in the middle of an epoch only.
    """

    def __init__(self, path: Path, every: int, training: Batches[Any], data: str) -> None:
        self.path = path
        self.every = every
        self.training = training
        self.data = data

    def state_dict(self) -> dict[str, Any]:
        return {"data": self.data, "parts": self.training.parts, **self.training.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["data"] != self.data:
            raise InputError(
                "the data has changed since the run began: other images, names or classes; start a new run"
            )
        self.training.load_state_dict(state)

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning counts batches; with more or fewer processes a step has another number of them
        before, now = checkpoint["callbacks"]["KeepLast"]["parts"], self.training.parts
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


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the optimizer has stepped after a batch, whose gradient was the last part of its step's."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def ends_epoch(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a batch is the last of its epoch."""
    return batch_idx + 1 >= trainer.num_training_batches


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


def newest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder that can be read; None if there is none.

    One that cannot is set aside as .damaged, and said. Raises InputError where all there are cannot be read.
    """
    damaged = []
    for path in (folder / LAST, folder / BEFORE):
        if not path.is_file():
            continue
        try:
            read_weights(path)
            with zipfile.ZipFile(path) as archive:
                changed = archive.testzip()  # torch.load checks no sums
        except (InputError, zipfile.BadZipFile) as error:
            damaged.append((path, str(error)))
            continue
        if changed is not None:
            damaged.append((path, f"{path} is damaged: its part {changed} has not the sum it was written with"))
            continue
        for other, why in damaged:
            aside = other.with_suffix(".damaged")
            say(f"{why}; set aside as {aside.name}, going on from {path.name}", file=sys.stderr)
            other.replace(aside)
        return path
    if damaged:
        path, why = damaged[0]
        raise InputError(f"{why}; {_advice(path)}")
    return None


def _advice(path: Path) -> str:
    return f"remove {path} to start the run again; best.ckpt beside it, if whole, can still be evaluated"


def check_resumable(path: Path, model: nn.Module, recipe: TrainingRecipe, classes: tuple[str, ...]) -> None:
    """Raise InputError unless the file is a whole checkpoint of a run of the recipe, on data with these classes.

    Where the data lies, the weights the run began with and what does not change the result may differ.
    """
    advice = _advice(path)
    try:
        tensors, rest = read_weights(path)
        if "fit_loop" not in rest["loops"] or "KeepLast" not in rest["callbacks"]:
            raise KeyError
        content = json.loads(rest["lambdanets"])
        begun = type(recipe).from_fields(content["recipe"], str(path))
    except InputError as error:
        raise InputError(f"{error}; {advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} holds weights and not the state of a run; {advice}") from error
    if begun.what_counts() != recipe.what_counts():
        raise InputError(f"{path} is of another recipe than the run's recipe.json; {advice}")
    if tuple(content["classes"]) != classes:
        raise InputError(f"the data has other classes than when the run began; start a new run, or {advice}")
    load_tensors(model, tensors, str(path))
