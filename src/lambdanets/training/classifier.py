"""A trained classifier in a file: which model, how to feed it, its classes, its weights."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from lambdanets.errors import InputError
from lambdanets.models import create_model
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.training.checkpoints import LAST, write_whole
from lambdanets.training.device import best_device
from lambdanets.training.recipe import Recipe

WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode on the best device, the recipe that says how to feed it, and its classes."""

    model: nn.Module
    recipe: Recipe
    classes: tuple[str, ...]


def describe(recipe: Recipe, classes: tuple[str, ...]) -> str:
    """What a file of weights must say beside them, as JSON."""
    return json.dumps({"recipe": json.loads(recipe.to_json()), "classes": classes})


def build_model(recipe: Recipe, classes: int) -> nn.Module:
    """The recipe's model for that many classes, from the recipe's weights where it names some."""
    options: dict[str, Any] = dict(recipe.model_options)
    if recipe.drop_path:
        options["drop_path_rate"] = recipe.drop_path
    if recipe.dropout:
        options["drop_rate"] = recipe.dropout
    model = create_model(recipe.model, recipe.weights, num_classes=classes, in_chans=recipe.channels, **options)
    return model.to(memory_format=torch.channels_last)  # convolutions are faster so, on CPU and GPU


def save_classifier(path: Path, model: nn.Module, description: str) -> None:
    """Write the weights and their description to a .safetensors file, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_whole(path, save(tensors, metadata={"lambdanets": description}))


def load_classifier(path: str | Path, model: str | None = None) -> Classifier:
    """The classifier in weights.safetensors, in a checkpoint (.ckpt), or in the folder of a run.

    model: build this model instead of the one the file names. Weights that do not fit raise InputError with the names
    that differ, as does a file that does not say what it holds.
    """
    path = Path(path)
    if path.is_dir():
        candidates = [path / WEIGHTS, path / "checkpoints" / LAST]
        found = [candidate for candidate in candidates if candidate.is_file()]
        if not found:
            raise InputError(f"{path} is no folder of a run: it has neither {WEIGHTS} nor checkpoints/{LAST}")
        path = found[0]
    tensors, rest = read_weights(path)
    if "lambdanets" not in rest:
        raise InputError(f"{path} does not say which model and classes it holds; expected a file that a run left")
    content = json.loads(rest["lambdanets"])
    recipe = Recipe.from_fields(content["recipe"], str(path))
    if model is not None:
        recipe = replace(recipe, model=model)
    classes = tuple(content["classes"])
    built = build_model(replace(recipe, weights=None), len(classes))
    load_tensors(built, tensors, str(path))
    return Classifier(built.to(best_device()).eval(), recipe, classes)
