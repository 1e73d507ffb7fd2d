"""Load weights from files, without running code that the files may contain."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lambdanets.errors import InputError


def load_weights(model: nn.Module, path: str | Path, skip: str = "") -> None:
    """Load the weights of a model from a .safetensors file or a checkpoint.

    skip: name of a module whose weights are not loaded, such as "fc"; none by default.

    All other names and shapes must match. Raises ValueError, and leaves the model unchanged, if the file is not a
    checkpoint, if weights are NaN or inf, or if names or shapes differ; the message then lists them.
    """
    weights = read_weights(path)[0]
    if skip:
        skipped = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(f"{skip}.")}
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{skip}.")} | skipped
    load_tensors(model, weights, str(path))


def load_tensors(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load a state dict into a model; all names and shapes must match.

    Tensors with NaN or inf raise an error, unless the current tensor of the model is non-finite too, such as a mask
    with -inf.

    Args:
        source: name of the file or model that the weights come from, for error messages.
    """
    state = model.state_dict()
    unexpected, missing = sorted(weights.keys() - state.keys()), sorted(state.keys() - weights.keys())
    mismatched = sorted(
        f"{name} {tuple(weights[name].shape)} instead of {tuple(state[name].shape)}"
        for name in weights.keys() & state.keys()
        if weights[name].shape != state[name].shape
    )
    if unexpected or missing or mismatched:
        raise InputError(
            f"{source} contains weights of another architecture: {_format_names(unexpected)} only in the file, "
            f"{_format_names(missing)} only in the model, {_format_names(mismatched)} of another shape"
        )
    for name, current in state.items():
        loaded = weights[name].to(current.dtype)
        if not loaded.isfinite().all() and current.isfinite().all():
            value = "NaN" if loaded.isnan().any() else "inf"
            raise InputError(f"{source} must contain only finite weights, got {value} in {name}")
    model.load_state_dict(weights)


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by name, and its other content: safetensors metadata, or checkpoint entries.

    A checkpoint of a training run stores the weights of the model under "state_dict", with the prefix "model.". Pickles
    are read by torch.load with weights_only=True, so no code from the file runs.
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
    except Exception as error:  # a corrupt file may raise any type of exception
        raise InputError(
            f"{path} is not a checkpoint: it is corrupt, has another format, or contains code, which is never run"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path} contains no state dict; expected a checkpoint with state_dict or a dict of tensors")
    metadata = {str(name): value for name, value in content.items() if name != "state_dict"}
    weights = {str(name).removeprefix("model."): value for name, value in state.items() if isinstance(value, Tensor)}
    return weights, metadata


def _format_names(names: Iterable[str], limit: int = 8) -> str:
    names = list(names)
    if not names:
        return "none"
    omitted = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} ({', '.join(names[:limit])}{omitted})"
