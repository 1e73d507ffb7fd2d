"""Weight files by path, by the name of a model that comes with the package, or on the Hugging Face hub."""

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from lambdanets.errors import InputError, nearest_hint, one_line
from lambdanets.models.weights import read_weights

FOLDER = Path(__file__).parents[1] / "pretrained"  # float16 weight files with a model card
WEIGHTS = "weights.safetensors"
LAST_CHECKPOINT = "checkpoints/last.ckpt"
CONFIG = "config.json"  # of folders in timm's hub format
HUB_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def packaged_models() -> list[str]:
    """Return the sorted names of the trained models that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def packaged_weights(name: str | os.PathLike[str]) -> Path | None:
    """Return the weight file of a name in `packaged_models`; None for other names, and for a path with weights.

    A folder with this name but without weights, such as the output folder of a command, does not hide the model.
    """
    if str(name) not in packaged_models() or Path(name).is_file() or weights_in(Path(name)) is not None:
        return None
    return FOLDER / f"{name}.safetensors"


def weights_in(folder: Path) -> Path | None:
    """Return the weight file of a run folder or a folder in timm's hub format; None for other folders and paths."""
    names = HUB_WEIGHTS if (folder / CONFIG).is_file() else (WEIGHTS, LAST_CHECKPOINT)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def is_hub_folder(folder: Path) -> bool:
    """Whether a folder has a config.json, as in timm's hub format; run folders have none."""
    return (folder / CONFIG).is_file()


def find_weights(source: str | os.PathLike[str]) -> Path:
    """Return the weight file that a source names.

    source: a weight file; a run folder, whose weights.safetensors is used or else its last checkpoint; a folder in
        timm's hub format, also as "local-dir:FOLDER"; "hf-hub:USER/NAME", which is downloaded; or a name in
        `packaged_models`, unless there is a path of this name with weights.

    Commands and functions resolve a source once, before they write files, and pass the file on.
    """
    if packaged := packaged_weights(source):
        return packaged
    path = local_path(source)
    if not path.exists():
        names = packaged_models()
        raise InputError(
            f"{path} must be a run folder, a weight file or one of {', '.join(names)}, which come with the package; "
            f"there is no such file{nearest_hint(str(path), names)}"
        )
    if not path.is_dir():
        return path
    if file := weights_in(path):
        return file
    if is_hub_folder(path):
        raise InputError(f"{path} must have {' or '.join(HUB_WEIGHTS)} next to {CONFIG}, got neither")
    raise InputError(f"{path} must be a run folder, got one without {WEIGHTS}, {LAST_CHECKPOINT} and {CONFIG}")


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
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=[CONFIG, *HUB_WEIGHTS]))
    except Exception as error:  # the HTTP library and huggingface_hub raise exceptions of many types
        raise InputError(f"{source} cannot be downloaded: {one_line(error)}") from error


def packaged_arguments(path: Path, model: str) -> dict[str, Any]:
    """Return the arguments of `create_model` for a weight file from `packaged_weights`.

    Raises InputError if it is not a classifier of this architecture.
    """
    card = json.loads(read_weights(path)[1]["lambdanets"])
    if card["task"] != "classification" or card["model"] != model:
        kind = "a detector with it" if card["model"] == model else card["model"]
        raise InputError(f"pretrained must have weights of a {model}, got {path.stem!r}, which is {kind}")
    return {
        "num_classes": len(card["classes"]),
        "in_chans": card["preprocessing"]["channels"],
        **card["model_options"],
    }
