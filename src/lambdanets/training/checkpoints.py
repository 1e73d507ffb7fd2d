"""Checkpoint files: atomic writes, the newest readable one, and whether it belongs to the run."""

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from lambdanets.errors import InputError
from lambdanets.files import atomic_open
from lambdanets.inference.model_card import read_description
from lambdanets.locks import Lock
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.terminal import echo
from lambdanets.training.recipe import TrainingRecipe

LAST = "last.ckpt"
BEST = "best.ckpt"
BEFORE = "before.ckpt"  # the previous one, in case last.ckpt is damaged


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically and keeps the previous last.ckpt. lock: that of the folder, checked before."""

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
        with atomic_open(path, path.with_name(BEFORE) if path.name == LAST else None) as file:
            file.write(content.getbuffer())


def newest(folder: Path) -> Path | None:
    """The newest readable checkpoint in a folder; None if there is none.

    A damaged one is renamed to .damaged, with a message. Raises InputError if all are damaged.
    """
    damaged = []
    for path in (folder / LAST, folder / BEFORE):
        if not path.is_file():
            continue
        try:
            read_weights(path)
            with zipfile.ZipFile(path) as archive:
                changed = archive.testzip()  # torch.load does not verify checksums
        except (InputError, zipfile.BadZipFile) as error:
            damaged.append((path, str(error)))
            continue
        if changed is not None:
            damaged.append((path, f"{path} is damaged: the checksum of its part {changed} is wrong"))
            continue
        for other, why in damaged:
            aside = other.with_suffix(".damaged")
            echo(f"{why}; renamed to {aside.name}, resuming from {path.name}", file=sys.stderr)
            other.replace(aside)
        return path
    if damaged:
        path, why = damaged[0]
        raise InputError(f"{why}; {_advice(path)}")
    return None


def _advice(path: Path) -> str:
    return f"remove {path} to restart the run; best.ckpt in the same folder can still be evaluated"


def check_resumable(path: Path, model: nn.Module, recipe: TrainingRecipe, classes: tuple[str, ...]) -> int:
    """The step of a checkpoint. Raises InputError unless it is one of a run of the recipe on data with these classes.

    The fields in `FREE` may differ.
    """
    advice = _advice(path)
    try:
        tensors, state = read_weights(path)
        if "fit_loop" not in state["loops"] or "KeepLast" not in state["callbacks"]:
            raise KeyError
        content, step = read_description(path, state), int(state["global_step"])
        saved = type(recipe).from_fields(content["recipe"], str(path))
    except InputError as error:
        raise InputError(f"{error}; {advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is a weight file, not a checkpoint of a run; {advice}") from error
    if saved.without_free_fields() != recipe.without_free_fields():
        raise InputError(f"{path} is of another recipe than the run's recipe.json; {advice}")
    if content["classes"] != classes:
        raise InputError(f"the classes of the data have changed since the run started; start a new run, or {advice}")
    load_tensors(model, tensors, str(path))
    return step
