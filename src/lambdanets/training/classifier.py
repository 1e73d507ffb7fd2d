"""A trained classifier in a file: which model, how to feed it, its classes, its weights."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from lambdanets.device import best_device
from lambdanets.errors import InputError
from lambdanets.files import write_whole
from lambdanets.layers import RelativeEmbedding
from lambdanets.models import create_model
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.ops.geometry import resize_table
from lambdanets.training.checkpoints import LAST
from lambdanets.training.recipe import Recipe, fits

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
    """The recipe's model for that many classes, from the recipe's weights where it names some.

    A classifier in those weights for another number of classes is left out, and drawn afresh; tables of embeddings of
    another scope are interpolated.
    """
    options: dict[str, Any] = dict(recipe.model_options)
    if recipe.drop_path:
        options["drop_path_rate"] = recipe.drop_path
    if recipe.dropout:
        options["drop_rate"] = recipe.dropout
    fixed = {"num_classes", "in_chans", "features_only", "pretrained"} & options.keys()
    if fixed:
        raise InputError(f"model_options must leave {', '.join(sorted(fixed))} to the data and the recipe")
    model: Any = create_model(recipe.model, num_classes=classes, in_chans=recipe.channels, **options)
    if recipe.weights is not None:
        path = weights_in(Path(recipe.weights))
        tensors, _ = read_weights(path)
        head = model.get_classifier()
        head = next((name for name, module in model.named_modules() if module is head), "")
        for name in (f"{head}.weight", f"{head}.bias"):
            if name in tensors and tensors[name].shape[:1] != (classes,):
                tensors[name] = model.state_dict()[name]
        _resize_tables(model, tensors)
        load_tensors(model, tensors, str(path))
    return model.to(memory_format=torch.channels_last)  # convolutions are faster so, on CPU and GPU


def _resize_tables(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Interpolate tables among the tensors to the scopes of the model's own."""
    for name, module in model.named_modules():
        table = tensors.get(f"{name}.table")
        if not isinstance(module, RelativeEmbedding) or table is None or table.dim() != module.table.dim():
            continue
        first = 0 if module.heads is None else 1
        if tuple(table.shape[first : first + module.dimensions]) != module.scope:
            heads = table.unsqueeze(0) if module.heads is None else table
            resized = torch.stack([resize_table(head, module.scope) for head in heads])
            tensors[f"{name}.table"] = resized[0] if module.heads is None else resized


def with_model_of_weights(recipe: Recipe) -> Recipe:
    """A recipe that names no model, with that of its weights, its options, and how its images are normalized.

    Options that the recipe has of its own are added to the model's, or replace them.
    """
    if recipe.model or recipe.weights is None:
        return recipe
    path = weights_in(Path(recipe.weights))
    _, fields = _described(path, read_weights(path)[1])
    theirs = Recipe.from_fields(fields, str(path))
    return replace(
        recipe,
        model=theirs.model,
        model_options=theirs.model_options | recipe.model_options,
        channels=theirs.channels,
        mean=theirs.mean,
        std=theirs.std,
    )


def save_classifier(path: Path, model: nn.Module, description: str) -> None:
    """Write the weights and their description to a .safetensors file, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_whole(path, save(tensors, metadata={"lambdanets": description}))


def load_classifier(path: str | Path, model: str | None = None) -> Classifier:
    """The classifier in weights.safetensors, in a checkpoint (.ckpt), or in the folder of a run.

    model: build this model instead of the one the file names. Weights that do not fit raise InputError with the names
    that differ, as does a file that does not say what it holds.
    """
    path = weights_in(Path(path))
    tensors, rest = read_weights(path)
    classes, fields = _described(path, rest)
    recipe = Recipe.from_fields(fields, str(path))
    if model is not None:
        recipe = replace(recipe, model=model)
    built = build_model(replace(recipe, weights=None), len(classes))
    load_tensors(built, tensors, str(path))
    return Classifier(built.to(best_device()).eval(), recipe, classes)


def _described(path: Path, rest: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The classes and the recipe's fields that a file of weights says beside them."""
    try:
        content = json.loads(rest["lambdanets"])
        classes, fields = tuple(content["classes"]), dict(content["recipe"])
        if not fits(classes, tuple[str, ...]) or isinstance(content["classes"], str):
            raise ValueError
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} does not say which model and classes it holds; expected a file that a run left"
        ) from error
    return classes, fields


def weights_in(path: Path) -> Path:
    """The file itself, or the weights in the folder of a run, or else its last checkpoint."""
    if not path.is_dir():
        return path
    for candidate in (path / WEIGHTS, path / "checkpoints" / LAST):
        if candidate.is_file():
            return candidate
    raise InputError(f"{path} is no folder of a run: it has neither {WEIGHTS} nor checkpoints/{LAST}")
