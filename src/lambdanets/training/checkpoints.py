"""How checkpoints are written, and which one a run resumes from."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.training.callbacks import BEST, LAST, Checkpoints
from lambdanets.training.recipe import parse_recipe
from lambdanets.training.task import Task


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(Path(path), content.getbuffer())


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`read_weights` of a checkpoint of a run, with its checksums, which torch.load does not verify."""
    content = read_weights(path)
    with zipfile.ZipFile(path) as archive:
        if member := archive.testzip():
            raise InputError(f"the checksum of {member} in {path} is wrong")
    return content


def find_resumable(folder: Path, task: Task) -> Path | None:
    """Return the last checkpoint of a run; None if there is none. The task gets its weights and its position.

    Raises InputError if it is damaged, or from a run of another recipe or on other data.
    """
    path = folder / LAST
    if not path.is_file():
        return None
    advice = "remove it to restart the run"
    if (folder / BEST).is_file():
        advice = f"replace it by a copy of {BEST} to resume from that epoch, or {advice}"
    try:
        tensors, state = read_checkpoint(path)
        saved = parse_recipe(json.loads(state["lambdanets"])["recipe"], path)  # of the model card
        position = state["callbacks"][Checkpoints.state_key]
        fingerprint = position["data"]
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged: {one_line(error)}; {advice}") from error
    if saved.identity() != task.recipe.identity():
        raise InputError(f"{path} has another recipe than the run's recipe.json; {advice}")
    if fingerprint != task.fingerprint:
        raise InputError("the data has changed since the run started (images, file names or classes); start a new run")
    load_tensors(task.model, tensors, str(path))
    task.initial_weights, task.position = state["initial_weights"], position
    return path
