"""Checkpoints on disk: written atomically, the newest whole one found, and checked against the run."""

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
from lambdanets.inference.model_card import described
from lambdanets.locks import Lock
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.terminal import say
from lambdanets.training.recipe import TrainingRecipe

LAST = "last.ckpt"
BEST = "best.ckpt"
BEFORE = "before.ckpt"  # the one before the last, should the last be damaged


class AtomicCheckpointIO(TorchCheckpointIO):
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
        with atomic_open(path, path.with_name(BEFORE) if path.name == LAST else None) as file:
            file.write(content.getbuffer())


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
        content = described(path, rest)
        begun = type(recipe).from_fields(content["recipe"], str(path))
    except InputError as error:
        raise InputError(f"{error}; {advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} holds weights and not the state of a run; {advice}") from error
    if begun.what_counts() != recipe.what_counts():
        raise InputError(f"{path} is of another recipe than the run's recipe.json; {advice}")
    if content["classes"] != classes:
        raise InputError(f"the data has other classes than when the run began; start a new run, or {advice}")
    load_tensors(model, tensors, str(path))
