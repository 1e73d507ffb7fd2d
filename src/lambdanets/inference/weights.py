"""Weight files, which contain tensors and a model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from lambdanets.errors import InputError, nearest_hint
from lambdanets.files import atomic_write, file_sha256
from lambdanets.inference.hub_folder import HUB_WEIGHTS, hub_weights, is_hub_folder, local_path, read_hub_folder
from lambdanets.inference.model_card import Card, read_card, read_description
from lambdanets.layers import RelativeEmbedding
from lambdanets.models.packaged import packaged_models, packaged_weights
from lambdanets.models.weights import read_weights
from lambdanets.ops.geometry import resize_table

WEIGHTS = "weights.safetensors"
LAST_CHECKPOINT = "checkpoints/last.ckpt"


def save_weights(path: Path, model: nn.Module, description: str) -> None:
    """Write the weights of a model to a .safetensors file, atomically. description: from `ModelCard.to_json`."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    atomic_write(path, save(tensors, metadata={"lambdanets": description}))


def find_weights(path: Path) -> Path:
    """Return the path of a weight file; for a run folder, weights.safetensors or else the last checkpoint.

    A name in `packaged_models` is a file of the package, unless such a path exists. "hf-hub:USER/NAME" is downloaded.
    For a folder in timm's hub format, it is model.safetensors or pytorch_model.bin.
    """
    if packaged := packaged_weights(path):
        return packaged
    path = local_path(path)
    if not path.exists():
        names = packaged_models()
        raise InputError(
            f"{path} must be a run folder, a weight file or one of {', '.join(names)}, which come with the package; "
            f"there is no such file{nearest_hint(str(path), names)}"
        )
    if not path.is_dir():
        return path
    if is_hub_folder(path):
        return hub_weights(path)
    for name in (WEIGHTS, LAST_CHECKPOINT):
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path} must be a run folder, got one without {WEIGHTS} and {LAST_CHECKPOINT}")


def file_identity(path: Path) -> dict[str, str]:
    """Return the name and SHA-256 of a weight file, or of the weight file in a run folder."""
    file = find_weights(path)
    name = f"{path.name}/{file.relative_to(path)}" if path.is_dir() else str(path) if path != file else path.name
    with file.open("rb") as content:
        return {"name": name, "sha256": file_sha256(content)}


def read_model_file(path: Path, *card_types: type[Card]) -> tuple[dict[str, torch.Tensor], Card]:
    """Read the weights in a file or run folder and their card. Raises InputError if it has none of these types."""
    path = find_weights(path)
    tensors, metadata = read_found_weights(path)
    return tensors, read_card(path, metadata, *card_types)


def read_found_weights(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read tensors and metadata of a file from `find_weights`. Those in timm's hub format are converted."""
    in_hub_folder = path.name in HUB_WEIGHTS and is_hub_folder(path.parent)
    return read_hub_folder(path.parent) if in_hub_folder else read_weights(path)


def has_different_classes(path: Path, metadata: Mapping[str, Any], classes: int | Sequence[str]) -> bool:
    """Whether the class names of a weight file differ from `classes`; False if either has no names."""
    if isinstance(classes, int) or "lambdanets" not in metadata:
        return False
    return bool(read_description(path, metadata)["classes"] != tuple(classes))


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
