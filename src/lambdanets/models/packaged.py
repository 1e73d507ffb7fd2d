"""Trained models that come with the package, by name: float16 weight files with a model card."""

import json
import os
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.models.weights import read_weights

FOLDER = Path(__file__).parents[1] / "pretrained"
# of run folders and of timm's hub format
_WEIGHT_FILES = ("weights.safetensors", "checkpoints/last.ckpt", "config.json")


def packaged_models() -> list[str]:
    """Return the sorted names of the trained models that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def packaged_weights(name: str | os.PathLike[str]) -> Path | None:
    """Return the weight file of a name in `packaged_models`; None for other names, and for a path with weights.

    A folder with this name but without weights, such as the output folder of a command, does not hide the model.
    """
    path = Path(name)
    has_weights = path.is_file() or any((path / file).is_file() for file in _WEIGHT_FILES)
    if str(name) not in packaged_models() or has_weights:
        return None
    return FOLDER / f"{name}.safetensors"


def packaged_arguments(path: Path, model: str) -> dict[str, Any]:
    """Return the arguments of `create_model` for a weight file from `packaged_weights`.

    Raises InputError if it is not a classifier of this architecture.
    """
    card = json.loads(read_weights(path)[1]["lambdanets"])
    if card["task"] != "classification" or card["model"] != model:
        kind = "a detector with it" if card["model"] == model else card["model"]
        raise InputError(f"pretrained must have weights of a {model}, got {path.stem!r}, which is {kind}")
    return {
        "num_classes": len(card["classes"]),
        "in_chans": card["preprocessing"]["channels"],
        **card["model_options"],
    }
