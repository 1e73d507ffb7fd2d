"""Load weights from files without running code from them."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lambdanets.errors import InputError


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a model's weights from a .safetensors file or a checkpoint, strictly.

    Raises ValueError if the file is not a checkpoint, if weights are NaN or inf, or if names or shapes differ; the
    message lists unexpected names, missing names and different shapes. The model is then unchanged.
    """
    load_tensors(model, read_weights(path)[0], str(path))


def load_tensors(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load named tensors, strictly; source: their origin, for errors.

    NaN and inf raise an error, unless the tensor of the new model is non-finite too, such as a mask of -inf.
    """
    ours = model.state_dict()
    only_file, only_model = sorted(weights.keys() - ours.keys()), sorted(ours.keys() - weights.keys())
    shapes = sorted(
        f"{name} {tuple(weights[name].shape)} for {tuple(ours[name].shape)}"
        for name in weights.keys() & ours.keys()
        if weights[name].shape != ours[name].shape
    )
    if only_file or only_model or shapes:
        raise InputError(
            f"{source} has the weights of another architecture: {_few(only_file)} only in the file, "
            f"{_few(only_model)} only in the model, {_few(shapes)} of another shape"
        )
    for name, own in ours.items():
        loaded = weights[name].to(own.dtype)
        if not loaded.isfinite().all() and own.isfinite().all():
            found = "NaN" if loaded.isnan().any() else "inf"
            raise InputError(f"{source} must hold finite weights, got {found} in {name}")
    model.load_state_dict(weights)


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and other content: safetensors metadata, or the rest of a checkpoint.

    A checkpoint of a training run has its model's weights under "state_dict" with the prefix "model.". Pickles are read
    by torch.load with weights_only=True, so that no code from the file runs.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file; expected weights (.safetensors) or a checkpoint (.ckpt)")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a readable safetensors file: {error}") from error
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns about pickles that it cannot read
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt file may raise any exception
        raise InputError(
            f"{path} is not a checkpoint: it is damaged, of another kind, or holds code, which is never run"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path} holds no named tensors; expected a checkpoint")
    rest = {str(name): value for name, value in content.items() if name != "state_dict"}
    weights = {str(name).removeprefix("model."): value for name, value in state.items() if isinstance(value, Tensor)}
    return weights, rest


def _few(names: Iterable[str], limit: int = 8) -> str:
    names = list(names)
    if not names:
        return "none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} ({', '.join(names[:limit])}{more})"
