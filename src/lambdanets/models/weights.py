"""Weights: found by name, read without running code that the files may contain, matched with a network, and saved."""

import argparse
import os
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from timm.models import adapt_input_conv
from torch import Tensor, nn

from lambdanets.errors import InputError, nearest_hint, one_line
from lambdanets.files import atomic_write, file_sha256
from lambdanets.layers import RelativeEmbedding
from lambdanets.terminal import echo

FOLDER = Path(__file__).parents[1] / "pretrained"  # float16 weight files with a model card
WEIGHTS, LAST_CHECKPOINT = "weights.safetensors", "checkpoints/last.ckpt"  # of a run folder
NON_FINITE = "the weights are damaged, or too large for their dtype or that of autocast"  # why outputs are NaN or inf
CONFIG, HUB_WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")  # of a folder in timm's hub format

Network = TypeVar("Network", bound=nn.Module)

# Modules that PyTorch's wrappers put into names, also in the middle of a name.
_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# What timm's networks with features_only=True put before names.
EXTRACTORS = re.compile(r"^(model|graph_module|body)\.")
# What checkpoints of timm and others contain beside tensors: their arguments and scores. None of these runs code.
_SAFE_TYPES: list[Any] = [
    *(argparse.Namespace, defaultdict, dict, list, np.ndarray, np.dtype),
    *((PurePosixPath, f"{module}.PosixPath") for module in ("pathlib", "pathlib._local")),
    *((PureWindowsPath, f"{module}.WindowsPath") for module in ("pathlib", "pathlib._local")),
    *((np.zeros(0).__reduce__()[0], f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *{type(np.dtype(name)) for name in np.typecodes["All"] if name not in "VO"},
]


class WeightSource(NamedTuple):
    """A weight file, and the name that a user gave: of a packaged model, a path, or a repository on the hub."""

    name: str
    file: Path

    @property
    def is_hub_format(self) -> bool:
        """Whether the file is in a folder in timm's hub format, beside a config.json; run folders have none."""
        return self.file.name in HUB_WEIGHTS and (self.file.parent / CONFIG).is_file()

    def sha256(self) -> str:
        """Return the SHA-256 of the file, which identifies a model in journals and results."""
        with self.file.open("rb") as content:
            return file_sha256(content)


def packaged_models() -> list[str]:
    """Return the sorted names of the trained models that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def find_weights(source: str | os.PathLike[str] | WeightSource) -> WeightSource:
    """Return the weight file that a source names.

    source: a weight file; a run folder, whose weights.safetensors is used or else its last checkpoint; a folder in
        timm's hub format, also as "local-dir:FOLDER"; "hf-hub:USER/NAME", which is downloaded; or a name in
        `packaged_models`, unless there is a path of this name with weights. A folder of this name without weights, such
        as the output of a command, does not hide the model.

    Commands and functions resolve a source once, before they write files, and pass the result on.
    """
    if isinstance(source, WeightSource):
        return source
    path, packaged = local_path(source), packaged_models()
    if file := weights_in(path):
        return WeightSource(str(source), file)
    if str(source) in packaged:
        return WeightSource(str(source), FOLDER / f"{source}.safetensors")
    expected = f"a run folder, a weight file or one of {', '.join(packaged)}, which come with the package"
    reason = f"got one without {WEIGHTS}, {LAST_CHECKPOINT} and {CONFIG} with {' or '.join(HUB_WEIGHTS)}"
    if not path.exists():
        reason = f"there is no such file{nearest_hint(str(path), packaged)}"
    raise InputError(f"{path} must be {expected}; {reason}")


def weights_in(path: Path) -> Path | None:
    """Return the path of a file, the weight file of a run folder or a folder in timm's hub format, or else None."""
    names = HUB_WEIGHTS if (path / CONFIG).is_file() else (WEIGHTS, LAST_CHECKPOINT)
    return next((file for file in (path, *map(path.joinpath, names)) if file.is_file()), None)


def local_path(source: str | os.PathLike[str]) -> Path:
    """Download "hf-hub:USER/NAME[@REVISION]" and return its folder; also return the path of "local-dir:" and others."""
    scheme, _, repo_id = str(source).partition(":")
    scheme = scheme.lower().replace("_", "-")  # timm accepts these spellings
    if scheme == "local-dir":
        return Path(repo_id)
    if scheme != "hf-hub":
        return Path(source)
    name, _, revision = repo_id.partition("@")
    try:
        for file in HUB_WEIGHTS:  # many repositories have both
            folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=[CONFIG, file]))
            if (folder / file).is_file():
                break
    except Exception as error:  # the HTTP library and huggingface_hub raise exceptions of many types
        raise InputError(f"{source} cannot be downloaded: {one_line(error)}") from error
    return folder


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by name, and its other content: safetensors metadata, or checkpoint entries.

    Tensors in dictionaries of a checkpoint have dotted names, such as "state_dict.conv1.weight"; `match_names` finds
    those of a network. Pickles are read by torch.load with weights_only=True, so no code from the file runs.
    """
    if path.is_file() and path.stat().st_size < 1024 and path.read_bytes().startswith(b"version https://git-lfs"):
        raise InputError(f"{path} must have weights, got a pointer of Git LFS; git lfs pull downloads the file")
    if path.suffix.lower() == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = dict(file.metadata() or {})
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a readable safetensors file: {error}") from error
        return tensors, metadata
    try:
        # torch warns about pickles that it cannot read
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals(_SAFE_TYPES):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt file may raise any type of exception
        reason = "it is corrupt, has another format, or contains code, which is never run"
        if blocked := re.search(r"GLOBAL ([\w.]+)", str(error)):
            reason = f"it contains {blocked[1]}, which is code and never run; save a state_dict() instead"
        raise InputError(f"{path} is not a checkpoint: {reason}") from error
    if not (tensors := dict(_named_tensors(content))):
        raise InputError(f"{path} contains no state dict; expected a checkpoint with state_dict or a dict of tensors")
    return tensors, {str(name): value for name, value in content.items()}


def _named_tensors(content: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif name != "current_model_state":  # in checkpoints of Lightning with an EMA, which is in state_dict
            yield from _named_tensors(value, f"{prefix}{name}.")


def match_names(weights: dict[str, Tensor], names: Collection[str], source: str) -> dict[str, Tensor]:
    """Give tensors the names that a model has for them.

    The prefix that training code puts before names, such as "state_dict." or "model.net.", is removed: the one with
    the most names of the model. Tensors without the prefix are left out: they belong to losses, optimizers or copies of
    the model. Among copies, the EMA or teacher is used, with a message on stderr.
    Names may also differ as those of timm's networks with features_only=True do: underscores for points, and a prefix.
    """
    weights = {_WRAPPERS.sub("", name): tensor for name, tensor in weights.items()}
    own = {EXTRACTORS.sub("", name).replace("_", "."): name for name in names}
    own |= {_WRAPPERS.sub("", name): name for name in names}

    def own_name(name: str) -> str | None:
        return own.get(name) or own.get(name.replace("_", "."))

    counts: Counter[str] = Counter()
    for name in weights:
        starts = (0, *(dot.end() for dot in re.finditer(r"\.", name)))
        counts.update([name[:start] for start in starts if own_name(name[start:])][:1])

    def rank(prefix: str) -> tuple[int, bool, int]:
        is_average = not {"ema", "teacher"}.isdisjoint(re.split(r"[._]", prefix))
        return counts[prefix], is_average, -len(prefix)

    prefix, *others = sorted(counts, key=rank, reverse=True) or [""]
    if copies := [f"{other}*" for other in others if counts[other] == len(names)]:
        echo(f"{source}: the weights {prefix}* are used, not {', '.join(copies)}", file=sys.stderr)
    kept = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    return {own_name(name) or name: tensor for name, tensor in kept.items()}


def adapt_weights(
    weights: dict[str, Tensor], model: Any, source: str, *, new_heads: bool | None = None, is_part: bool = False
) -> dict[str, Tensor]:
    """Return weights of a network with other classes, channels or scopes with the names and shapes of a model.

    Weights of RGB images are summed for one channel and repeated for others, as in timm. Embedding tables of another
    scope are interpolated. A message on stderr says which layers are random or interpolated.

    new_heads: whether the last layers keep their random weights; default None if the file has none or in other shapes.
    is_part: leave out what the model lacks, as a detector's backbone lacks a classifier.
    """
    state = model.state_dict()
    weights = match_names(weights, state, source)
    if is_part:
        weights = {name: weights[name] for name in state if name in weights}
    heads = tuple(f"{name}." for name in _last_layers(model))
    own = {name: tensor for name, tensor in state.items() if name.startswith(heads)}
    if new_heads is None:
        new_heads = own.keys().isdisjoint(weights) or any(
            weights[name].shape != own[name].shape for name in own.keys() & weights.keys()
        )
    if new_heads:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(heads)} | own
        if own:
            echo(f"{source}: the last layer has random weights, as the file has other classes or none", file=sys.stderr)
    firsts = {f"{name}.weight" for name in module_names(model, "first_conv")}
    for name in state.keys() & weights.keys():
        channels, channels_of_file = state[name].shape[1:2], weights[name].shape[1:2]
        if EXTRACTORS.sub("", name) in firsts and channels != channels_of_file == (3,):
            weights[name] = adapt_input_conv(channels[0], weights[name].float())
    scopes = set()
    for name, layer in model.named_modules():
        table = weights.get(f"{name}.table")
        if isinstance(layer, RelativeEmbedding) and table is not None and layer.differs_in_scope(table):
            weights[f"{name}.table"] = layer.resized(table, layer.scope)
            scopes.add(layer.scope)
    if scopes:
        echo(f"{source}: embedding tables are interpolated to scope {', '.join(map(str, scopes))}", file=sys.stderr)
    return weights


def _last_layers(model: Any) -> tuple[str, ...]:
    """Return the modules whose outputs are those of the classes."""
    if names := getattr(model, "HEADS", ()) or module_names(model, "classifier"):
        return tuple(names)
    last = model.get_classifier() if hasattr(model, "get_classifier") else None  # of a task of one's own
    return tuple(name for name, module in model.named_modules() if module is last)


def module_names(model: Any, key: str) -> tuple[str, ...]:
    """Return the modules that timm's configuration names, such as both classifiers of a distilled transformer."""
    names = getattr(model, "pretrained_cfg", {}).get(key) or ()
    return (names,) if isinstance(names, str) else tuple(names)


def load_tensors(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load a state dict into a model; all names and shapes must match, except as `match_names` says.

    As in PyTorch, counters of batches may be missing, which old versions and other frameworks do not have.

    source: name of the file or model that the weights come from, for messages.

    Raises InputError, and leaves the model unchanged, if names or shapes differ, with a list of them, or if weights are
    NaN or inf where those of the model are finite; a mask may contain -inf.
    """
    state = model.state_dict()
    weights = _fit(state, weights, source)
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
    with torch.device("meta"):
        state = build().state_dict()
    weights = _fit(state, weights, source)
    with torch.device("cpu"):
        model = build().float()
    load_tensors(model, weights, source)
    return model


def _fit(state: Mapping[str, Tensor], weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return weights with the names of a state dict. Raises InputError if names or shapes are not the same."""
    counters = {name: torch.tensor(0) for name in state if name.endswith("num_batches_tracked")}
    weights = counters | match_names(weights, state, source)
    ours, theirs = ({f"{name} {(*tensor.shape,)}" for name, tensor in each.items()} for each in (state, weights))
    if ours != theirs:
        raise InputError(
            f"{source} contains weights of another architecture: {_shortened(theirs - ours)} only in the file, "
            f"{_shortened(ours - theirs)} only in the model"
        )
    return weights


def _shortened(names: set[str], limit: int = 8) -> str:
    omitted = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} ({', '.join(sorted(names)[:limit])}{omitted})" if names else "none"


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU, because safetensors refuses tensors that share memory."""
    return {
        name: tensor.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)
        for name, tensor in state.items()
    }


def save_weights(path: Path, model: nn.Module, description: str) -> None:
    """Write the weights of a model to a .safetensors file, atomically. description: from `ModelCard.to_json`."""
    atomic_write(path, save(copied(model.state_dict()), metadata={"lambdanets": description}))
