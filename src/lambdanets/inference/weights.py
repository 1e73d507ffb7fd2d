"""Weight files, which contain tensors and a model card."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from lambdanets.files import atomic_write, file_sha256, nfc
from lambdanets.inference.hub_folder import read_hub_folder
from lambdanets.inference.model_card import Card, read_card, read_description
from lambdanets.layers import RelativeEmbedding
from lambdanets.models.packaged import HUB_WEIGHTS, find_weights, is_hub_folder
from lambdanets.models.weights import copied, read_weights
from lambdanets.ops.tables import resize_table
from lambdanets.records import reraise_as_input_error

RECIPE = "recipe.json"  # in run folders


def save_weights(path: Path, model: nn.Module, description: str) -> None:
    """Write the weights of a model to a .safetensors file, atomically. description: from `ModelCard.to_public_json`."""
    atomic_write(path, save(copied(model.state_dict()), metadata={"lambdanets": description}))


def weights_sha256(file: Path) -> str:
    """Return the SHA-256 of a weight file, which identifies a model in journals and results."""
    with file.open("rb") as content:
        return file_sha256(content)


def read_model_file(path: str | os.PathLike[str], *card_types: type[Card]) -> tuple[dict[str, torch.Tensor], Card]:
    """Read the weights of a source (see `find_weights`) and their card.

    Raises InputError if it has none of these types.
    """
    file = find_weights(path)
    tensors, metadata = read_found_weights(file)
    card = read_card(file, metadata, *card_types)
    run = file.parent.parent if file.parent.name == "checkpoints" else file.parent
    if (run / RECIPE).is_file():  # weight files do not name the data of the user
        with reraise_as_input_error(f"{run / RECIPE} is damaged"):
            card = card.with_data(json.loads((run / RECIPE).read_bytes()))
    return tensors, card


def read_found_weights(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read tensors and metadata of a file from `find_weights`. Those in timm's hub format are converted."""
    in_hub_folder = file.name in HUB_WEIGHTS and is_hub_folder(file.parent)
    return read_hub_folder(file.parent) if in_hub_folder else read_weights(file)


def has_different_classes(path: Path, metadata: Mapping[str, Any], classes: int | Sequence[str]) -> bool:
    """Whether the class names of a weight file differ from `classes`; False if either has no names."""
    if isinstance(classes, int) or "lambdanets" not in metadata:
        return False
    return [*map(nfc, read_description(path, metadata)["classes"])] != [*map(nfc, classes)]


def resize_tables(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Resize the embedding tables in `tensors` to the scopes of the model by interpolation, in place."""
    for name, module in model.named_modules():
        table = tensors.get(f"{name}.table")
        if not isinstance(module, RelativeEmbedding) or table is None or table.dim() != module.table.dim():
            continue
        first = 0 if module.heads is None else 1
        if tuple(table.shape[first : first + module.dimensions]) != module.scope:
            heads = table.unsqueeze(0) if module.heads is None else table
            resized = torch.stack([resize_table(head, module.scope) for head in heads])
            tensors[f"{name}.table"] = resized[0] if module.heads is None else resized
