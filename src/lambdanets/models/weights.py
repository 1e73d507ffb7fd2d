"""Load weights from files, without running code that the files may contain."""

import argparse
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.terminal import echo

Network = TypeVar("Network", bound=nn.Module)

# Entries of checkpoints that have a state dict, in the order in which they are used. EMA first, as in
# timm; a mean teacher is one.
_ENTRIES = (
    *("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "params_ema", "ema", "teacher"),
    *("state_dict", "model_state_dict", "model_state", "model", "module", "network", "net", "backbone"),
    *("weights", "params", "student"),
)
# Modules that PyTorch's wrappers put into names, also in the middle of a name.
_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# What checkpoints of timm and others contain beside tensors: their arguments and scores. None of these runs code.
_SAFE_TYPES: list[Any] = [
    argparse.Namespace,
    defaultdict,
    dict,
    list,
    (PurePosixPath, "pathlib.PosixPath"),
    (PurePosixPath, "pathlib._local.PosixPath"),
    (PureWindowsPath, "pathlib.WindowsPath"),
    (PureWindowsPath, "pathlib._local.WindowsPath"),
    np.ndarray,
    (np.zeros(0).__reduce__()[0], "numpy.core.multiarray._reconstruct"),
    (np.zeros(0).__reduce__()[0], "numpy._core.multiarray._reconstruct"),
    np.dtype,
    *{type(np.dtype(name)) for name in np.typecodes["All"] if name not in "VO"},
    (np.float64(0).__reduce__()[0], "numpy.core.multiarray.scalar"),
    (np.float64(0).__reduce__()[0], "numpy._core.multiarray.scalar"),
]


def load_weights(model: nn.Module, path: str | Path, skip: str = "") -> None:
    """Load the weights of a model from a .safetensors file or a checkpoint.

    skip: name of a module whose weights are not loaded, such as "fc"; none by default.

    Raises as `load_tensors` does, and InputError if the file is not a checkpoint.
    """
    load_tensors(model, read_weights(path)[0], str(path), skip)


def load_tensors(model: nn.Module, weights: dict[str, Tensor], source: str, skip: str = "") -> None:
    """Load a state dict into a model; all names and shapes must match, except for a prefix (see `match_names`).

    source: name of the file or model that the weights come from, for messages. skip: see `load_weights`.

    Raises InputError, and leaves the model unchanged, if names or shapes differ, with a list of them, or if weights are
    NaN or inf where those of the model are finite; a mask may contain -inf.
    """
    state = model.state_dict()
    weights = match_names(weights, state, source)
    if skip:
        skipped = {name: tensor for name, tensor in state.items() if name.startswith(f"{skip}.")}
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{skip}.")} | skipped
    weights = _check_shapes(state, weights, source)
    for name, current in state.items():
        loaded = weights[name].to(current.dtype)
        if not loaded.isfinite().all() and current.isfinite().all():
            value = "NaN" if loaded.isnan().any() else "inf"
            raise InputError(f"{source} must contain only finite weights, got {value} in {name}")
    model.load_state_dict(weights)


def build_with_weights(build: Callable[[], Network], weights: dict[str, Tensor], source: str) -> Network:
    """Build a network and load a state dict into it, in float32 on the CPU, whatever PyTorch's defaults are.

    Names and shapes are compared on the meta device first, because a file may describe a network of any size.
    """
    with _default_dtype(torch.float32):
        with torch.device("meta"):
            state = build().state_dict()
        weights = _check_shapes(state, weights, source)
        with torch.device("cpu"):
            model = build()
    load_tensors(model, weights, source)
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _check_shapes(state: Mapping[str, Tensor], weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return the weights under the names of the state. Raises InputError unless names and shapes are the same."""
    weights = match_names(weights, state, source)
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
    return weights


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU, because safetensors refuses tensors that share memory."""
    return {
        name: tensor.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)
        for name, tensor in state.items()
    }


def match_names(weights: dict[str, Tensor], names: Collection[str], source: str) -> dict[str, Tensor]:
    """Remove the prefix that training code puts before the names of a model, such as "module." or "model.net.".

    names: those of the model. The prefix is the one with the most of these names. If it has all of them, tensors
    without the prefix are left out: they belong to losses, metrics or copies of the model. Among
    copies, the EMA or teacher is used, with a message on stderr.
    """
    counts = Counter(name[:start] for name in weights for start in _starts(name) if name[start:] in names)

    def rank(prefix: str) -> tuple[int, bool, int]:
        is_average = not {"ema", "teacher"}.isdisjoint(re.split(r"[._]", prefix))
        return counts[prefix], is_average, -len(prefix)

    prefix, *others = sorted(counts, key=rank, reverse=True) or [""]
    if not prefix:
        return weights
    complete = counts[prefix] == len(names)
    if copies := [f"{other}*" for other in others if complete and counts[other] == len(names)]:
        echo(f"{source}: the weights {prefix}* are used, not {', '.join(copies)}", file=sys.stderr)
    return {
        name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix) or not complete
    }


def _starts(name: str) -> Iterator[int]:
    """The positions in a name at which a module or tensor begins."""
    yield from (0, *(match.end() for match in re.finditer(r"\.", name)))


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by name, and its other content: safetensors metadata, or checkpoint entries.

    The tensors of a checkpoint are those of its EMA or teacher if it has one, as in timm; otherwise
    those under "state_dict", "model" and the like, or its own. A choice is printed on stderr.
    Pickles are read by torch.load with weights_only=True, so no code from the file runs.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file; expected weights (.safetensors) or a checkpoint (.ckpt)")
    if path.suffix.lower() == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = dict(file.metadata() or {})
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a readable safetensors file: {error}") from error
        return _without_wrappers(tensors), metadata
    try:
        # torch warns about pickles that it cannot read
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals(_SAFE_TYPES):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt file may raise any type of exception
        blocked = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = "it is corrupt, has another format, or contains code, which is never run"
        if blocked:
            reason = f"it contains {blocked[1]}, which is code and never run; save a state_dict() instead"
        raise InputError(f"{path} is not a checkpoint: {reason}") from error
    state, entry = content, None
    while entries := [name for name in _ENTRIES if isinstance(state, dict) and _has_tensors(state.get(name))]:
        if len(entries) > 1:
            used, *others = entries
            echo(f"{path}: the weights {used} are used, not {', '.join(others)}", file=sys.stderr)
        state, entry = state[entries[0]], entry or entries[0]
    if not _has_tensors(state):
        raise InputError(f"{path} contains no state dict; expected a checkpoint with state_dict or a dict of tensors")
    metadata = {str(name): value for name, value in content.items() if name != entry}
    return _without_wrappers({str(name): value for name, value in state.items() if isinstance(value, Tensor)}), metadata


def _has_tensors(content: Any) -> bool:
    """Whether a value is a dict with tensors, or with a state dict."""
    if not isinstance(content, dict):
        return False
    nested = any(_has_tensors(content.get(name)) for name in _ENTRIES)
    return nested or any(isinstance(value, Tensor) for value in content.values())


def _without_wrappers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {_WRAPPERS.sub("", name): tensor for name, tensor in tensors.items()}


def _format_names(names: Iterable[str], limit: int = 8) -> str:
    names = list(names)
    if not names:
        return "none"
    omitted = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} ({', '.join(names[:limit])}{omitted})"
