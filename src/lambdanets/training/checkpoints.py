"""Checkpoint files: write them atomically, find the newest readable one, check that it belongs to the run."""

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_open
from lambdanets.inference.model_card import read_card
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.terminal import echo
from lambdanets.training.recipe import TrainingRecipe

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


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest readable checkpoint in a folder, or None if there are no checkpoints.

    If last.ckpt is damaged, it is renamed to last.damaged, with a message, and the previous one is returned. Raises
    InputError if that one is damaged or missing.
    """
    damage = ""
    for path in (folder / LAST, folder / PREVIOUS):
        if not path.is_file():
            continue
        try:
            read_weights(path)
            with zipfile.ZipFile(path) as archive:
                if member := archive.testzip():  # torch.load does not verify checksums
                    raise InputError(f"{path} is damaged: the checksum of {member} in it is wrong")
        except (InputError, zipfile.BadZipFile) as error:
            damage = damage or f"{error}; {_advice(path)}"
            continue
        if damage:
            echo(f"{folder / LAST} is damaged; renamed to last.damaged, resuming from {path.name}", file=sys.stderr)
            (folder / LAST).replace(folder / "last.damaged")
        return path
    if damage:
        raise InputError(damage)
    return None


def _advice(path: Path) -> str:
    return f"remove {path} to restart the run; best.ckpt in the same folder can still be evaluated"


def check_resumable(
    path: Path, model: nn.Module, recipe: TrainingRecipe, classes: tuple[str, ...], fingerprint: str
) -> None:
    """Load a checkpoint's weights into the model.

    Raises InputError unless the checkpoint is from a run of this recipe on data with these classes
    and this fingerprint. The recipe's `CHANGEABLE` fields may differ.
    """
    advice = _advice(path)
    try:
        tensors, state = read_weights(path)
        card = read_card(path, state)
        saved = type(recipe).from_fields(card.recipe, str(path))
        saved_fingerprint = state["callbacks"]["KeepLast"]["data"]
    except (InputError, KeyError, TypeError) as error:
        raise InputError(f"{path} must be a checkpoint of a run: {one_line(error)}; {advice}") from error
    if saved.without_changeable_fields() != recipe.without_changeable_fields():
        raise InputError(f"{path} has another recipe than the run's recipe.json; {advice}")
    if card.classes != classes:
        raise InputError(f"the classes of the data have changed since the run started; start a new run, or {advice}")
    if saved_fingerprint != fingerprint:
        raise InputError("the data has changed since the run started (images, file names or classes); start a new run")
    load_tensors(model, tensors, str(path))
