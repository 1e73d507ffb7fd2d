"""Trained weights in a file, with the card of their model beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from lambdanets.errors import InputError
from lambdanets.files import atomic_write, sha256_of
from lambdanets.inference.model_card import Card, described, read_card
from lambdanets.layers import RelativeEmbedding
from lambdanets.models.weights import read_weights
from lambdanets.ops.geometry import resize_table

WEIGHTS = "weights.safetensors"
LAST_CHECKPOINT = "checkpoints/last.ckpt"


def save_weights(path: Path, model: nn.Module, description: str) -> None:
    """Write the weights and their description (`ModelCard.to_json`) to a .safetensors file, atomically."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    atomic_write(path, save(tensors, metadata={"lambdanets": description}))


def weights_in(path: Path) -> Path:
    """The file itself, or the weights in the folder of a run, or else its last checkpoint."""
    if not path.is_dir():
        return path
    for name in (WEIGHTS, LAST_CHECKPOINT):
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path} is no folder of a run: it has neither {WEIGHTS} nor {LAST_CHECKPOINT}")


def identified(path: Path) -> dict[str, str]:
    """Name and SHA-256 of a file of weights, or of that in a run's folder."""
    file = weights_in(path)
    name = path.name if file == path else f"{path.name}/{file.relative_to(path)}"
    with file.open("rb") as content:
        return {"name": name, "sha256": sha256_of(content)}


def read_model_file(path: Path, *kinds: type[Card]) -> tuple[dict[str, torch.Tensor], Card]:
    """The weights in a file or in the folder of a run, and their card, of one of these kinds."""
    path = weights_in(path)
    tensors, rest = read_weights(path)
    return tensors, read_card(path, rest, *kinds)


def of_other_classes(path: Path, rest: Mapping[str, Any], classes: int | Sequence[str]) -> bool:
    """Whether a file of weights names other classes; not where either side is without names."""
    if isinstance(classes, int) or "lambdanets" not in rest:
        return False
    return bool(described(path, rest)["classes"] != tuple(classes))


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
