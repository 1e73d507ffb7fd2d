"""Classifiers in timm's hub format, a folder of config.json, model.safetensors and README.md.

timm and this package load such folders as "local-dir:FOLDER" and, after an upload, as "hf-hub:USER/NAME".
"""

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from safetensors.torch import save
from timm.models._hub import generate_readme, save_config_for_hf
from torch import nn

from lambdanets.adoption import adopted_layers, foreign_state_dict
from lambdanets.errors import InputError, one_line
from lambdanets.files import RESULT, atomic_write, encode_utf8
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.loading import load
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.models.weights import CONFIG, HUB_WEIGHTS, copied, find_weights, weights_in
from lambdanets.records import read_json

README = "README.md"
MAX_ERROR = 1e-3  # of the largest output; deep randomly initialized networks amplify rounding to a few 1e-5
_RESULTS = ("top1", "validation_images", "training_images", "epochs", "parameters", "seconds")
_USAGE = """Lambda layers of Bello, LambdaNetworks (ICLR 2021).

```python
import lambdanets as ln

classifier = ln.load("FOLDER")  # this folder, or "hf-hub:USER/NAME"
print(classifier.predict("image.jpg"))

import timm  # adopted networks of timm need only timm

model = timm.create_model("local-dir:FOLDER", pretrained=True)
```"""


def save_pretrained(
    model: str | os.PathLike[str] | Classifier | nn.Module,
    folder: str | os.PathLike[str],
    *,
    license: str | None = None,
) -> Path:
    """Write a classifier to a folder in timm's hub format, and return the path of the folder.

    Args:
        model: a run folder or weight file, a `Classifier`, or a network from `create_model`, whether adopted or not.
        folder: created if missing. config.json, model.safetensors and README.md in it are replaced.
        license: identifier of the license of the weights for README.md, such as "apache-2.0"; by default "other".

    Layers replaced by `adopt` are saved with the state-dict keys and shapes of the original layers, so that timm loads
    the folder without this package. For models of this package, `import lambdanets` before
    timm.create_model("local-dir:FOLDER", pretrained=True). README.md describes how to load the model, and has the
    scores and recipe of its run. No file has a path, or the name of data or weights of your own.

    Raises InputError, and writes nothing, for models that timm's hub format does not support: detectors, segmenters,
    and networks changed after they were created, such as by `replace_convolutions`. Every saved folder was loaded
    again, and its outputs compared.
    """
    source: Any = model
    folder, scores = Path(folder), {}
    if isinstance(model, str | os.PathLike):
        found = find_weights(model)
        source, result = load(found, device="cpu"), found.file.with_name(RESULT)
        scores = read_json(result, dict[str, Any]) if result.is_file() else {}
    card = source.card.without_paths() if isinstance(source, Classifier) else None
    network: Any = source.model if isinstance(source, Classifier) else source
    network = getattr(network, "_orig_mod", network)  # of torch.compile
    if not isinstance(network, nn.Module) or not hasattr(network, "pretrained_cfg"):
        raise InputError(
            "model must be a run folder, a weight file, a Classifier or a network from create_model, "
            f"got {type(source).__name__}; timm's hub format is for classifiers"
        )
    if folder.suffix == ".safetensors" or (weights_in(folder) and not (folder / CONFIG).is_file()):
        raise InputError(f"folder must not be a run folder or a file, got {folder}")
    metadata = {"format": "pt"} if card is None else {"format": "pt", "lambdanets": card.to_json()}
    tensors = copied(foreign_state_dict(network) if adopted_layers(network) else network.state_dict())
    with tempfile.TemporaryDirectory() as temporary:
        saved = Path(temporary)
        try:
            save_config_for_hf(network, str(saved / CONFIG), **(_options(card) if card else {}))
        except (AttributeError, TypeError, ValueError) as error:  # of timm
            raise InputError(f"model must be a classifier with arguments of JSON types: {one_line(error)}") from error
        (saved / HUB_WEIGHTS[0]).write_bytes(save(tensors, metadata=metadata))
        _check_loaded(network, saved)
        content = {
            "tags": ["lambda-networks", "lambdanets"],
            "license": license or "other",
            "details": (card.recipe if card else {}) | {name: scores[name] for name in _RESULTS if name in scores},
            "usage": _USAGE,
        }
        (saved / README).write_bytes(encode_utf8(generate_readme(content, folder.resolve().name)))
        folder.mkdir(parents=True, exist_ok=True)
        for path in saved.iterdir():
            atomic_write(folder / path.name, path.read_bytes())
    return folder


def _options(card: ClassifierCard) -> dict[str, Any]:
    """Return the arguments of `save_config_for_hf`: arguments of the network, classes and preprocessing."""
    preprocessing = card.preprocessing
    side, channels = preprocessing.image_size, preprocessing.channels
    data = {name: getattr(preprocessing, name) for name in ("mean", "std", "crop_pct", "interpolation")}
    data |= {name: data[name] * channels for name in ("mean", "std") if len(data[name]) == 1}
    return {
        "model_config": {"label_names": list(card.classes)},
        "model_args": {**card.model_options, **({} if channels == 3 else {"in_chans": channels})},
        "data_config": {"input_size": (channels, side, side), **data},
    }


def _check_loaded(network: nn.Module, folder: Path) -> None:
    """Raise InputError unless a folder loads as a classifier with the same outputs as the network.

    For an adopted network, this also compares the layers of timm, with which timm loads it: `adopt` compares each.
    """
    problem = "model must not have changes such as those of replace_convolutions; save its state_dict() instead"
    try:
        loaded: Any = load(folder, device="cpu")
    except InputError as error:
        raise InputError(f"model cannot be saved in timm's format: {error}; {problem}") from error
    channels, side = loaded.card.preprocessing.channels, loaded.card.preprocessing.image_size
    images = torch.randn(1, channels, side, side, generator=torch.Generator().manual_seed(0), device="cpu")
    with torch.inference_mode():
        expected = copy.deepcopy(network).cpu().float().eval()(images)
        if tuple(expected.shape) != (1, len(loaded.classes)):
            raise InputError(f"model must be a classifier, got outputs of shape {tuple(expected.shape)}")
        difference = float((loaded.model(images) - expected).abs().max() / expected.abs().max())
    if not difference <= MAX_ERROR:  # true also for NaN
        raise InputError(problem)


def push_to_hub(
    model: str | os.PathLike[str] | Classifier | nn.Module,
    repo_id: str,
    *,
    license: str | None = None,
    private: bool = False,
    token: str | None = None,
    commit_message: str = "Upload model",
) -> str:
    """Upload what `save_pretrained` writes for a classifier to the Hugging Face hub, and return its URL.

    Args:
        repo_id: "USER/NAME", created if missing, private if `private`. An existing README.md there is kept.
        token: access token; by default that of `hf auth login` or of the environment variable HF_TOKEN.

    Raises InputError as `save_pretrained`, and if the upload fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_pretrained(model, Path(temporary, repo_id.rpartition("/")[2]), license=license)
        api = HfApi(token=token, library_name="lambdanets")
        try:
            repository = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            if api.file_exists(repository, README):
                (folder / README).unlink()
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=commit_message)
        except Exception as error:  # the HTTP library and huggingface_hub raise exceptions of many types
            raise InputError(f"{repo_id} cannot be uploaded: {one_line(error)}") from error
        return f"{api.endpoint}/{repository}"
