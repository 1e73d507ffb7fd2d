"""Trained weights in a file, with what is needed to build their model again beside them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from lambdanets.bounds import fits
from lambdanets.errors import InputError
from lambdanets.files import sha256_of, write_whole
from lambdanets.layers import RelativeEmbedding
from lambdanets.models.weights import read_weights
from lambdanets.ops.geometry import resize_table
from lambdanets.training.checkpoints import LAST
from lambdanets.training.recipe import TrainingRecipe

WEIGHTS = "weights.safetensors"


def describe(recipe: TrainingRecipe, classes: Sequence[str], **more: Any) -> str:
    """What a file of weights must say beside them, as JSON."""
    return json.dumps({"recipe": json.loads(recipe.to_json()), "classes": classes, **more})


def described(path: Path, rest: Mapping[str, Any]) -> dict[str, Any]:
    """What a file of weights says beside them: "recipe", its fields; "classes", a tuple; and what the task adds."""
    try:
        content = json.loads(rest["lambdanets"])
        classes, recipe = content["classes"], content["recipe"]
        if not (isinstance(classes, list) and isinstance(recipe, dict)):
            raise ValueError
        content |= {"classes": tuple(classes)}
        if not (classes and fits(content["classes"], tuple[str, ...])):
            raise ValueError
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} does not say which model and classes it holds; expected a file that a run left"
        ) from error
    return dict(content)


def of_other_classes(path: Path, rest: Mapping[str, Any], classes: int | Sequence[str]) -> bool:
    """Whether weights say that what they tell apart is something else; not where either side is without names."""
    if isinstance(classes, int) or "lambdanets" not in rest:
        return False
    return bool(described(path, rest)["classes"] != tuple(classes))


def save_weights(path: Path, model: nn.Module, description: str) -> None:
    """Write the weights and their description to a .safetensors file, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_whole(path, save(tensors, metadata={"lambdanets": description}))


def weights_in(path: Path) -> Path:
    """The file itself, or the weights in the folder of a run, or else its last checkpoint."""
    if not path.is_dir():
        return path
    for candidate in (path / WEIGHTS, path / "checkpoints" / LAST):
        if candidate.is_file():
            return candidate
    raise InputError(f"{path} is no folder of a run: it has neither {WEIGHTS} nor checkpoints/{LAST}")


def identified(path: Path) -> dict[str, str]:
    """What tells a file of weights, or that of a run's folder, from others wherever it lies: name and SHA-256."""
    file = weights_in(path)
    name = path.name if file == path else f"{path.name}/{file.relative_to(path)}"
    with file.open("rb") as content:
        return {"name": name, "sha256": sha256_of(content)}


def read_described(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights in a file or in the folder of a run, and what it says beside them."""
    path = weights_in(path)
    tensors, rest = read_weights(path)
    return tensors, described(path, rest)


def resize_tables(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Interpolate tables of embeddings among the tensors to the scopes of the model's own."""
    for name, module in model.named_modules():
        table = tensors.get(f"{name}.table")
        if not isinstance(module, RelativeEmbedding) or table is None or table.dim() != module.table.dim():
            continue
        first = 0 if module.heads is None else 1
        if tuple(table.shape[first : first + module.dimensions]) != module.scope:
            heads = table.unsqueeze(0) if module.heads is None else table
            resized = torch.stack([resize_table(head, module.scope) for head in heads])
            tensors[f"{name}.table"] = resized[0] if module.heads is None else resized
