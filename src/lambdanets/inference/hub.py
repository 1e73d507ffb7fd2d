"""Model folders in timm's hub format: config.json, model.safetensors and README.md.

timm and this package load them as "local-dir:FOLDER" and, after an upload, as "hf-hub:USER/NAME".
"""

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, HfApi, ModelCardData
from safetensors.torch import save
from timm.models import save_for_hf
from torch import nn

from lambdanets.adoption import foreign_state_dict, is_adopted
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.loading import load_one_of
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.models.weights import CONFIG, HUB_WEIGHTS, copied, find_weights
from lambdanets.records import read_json

README = "README.md"
_RESULTS = ("top1", "validation_images", "data", "training_images", "epochs", "parameters", "seconds")
_TEXT = """---
{front_matter}
---

# {name}

`{architecture}` with {num_classes} classes: lambda layers of Bello, LambdaNetworks (ICLR 2021).

```python
import lambdanets as ln

classifier = ln.load("FOLDER")  # this folder, or "hf-hub:USER/NAME"
print(classifier.predict("image.jpg"))

import timm  # adopted networks of timm need only timm

model = timm.create_model("local-dir:FOLDER", pretrained=True)
```
"""


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
        license: identifier of the license of the weights for README.md, such as "apache-2.0".

    Layers replaced by `adopt` are saved with the state-dict keys and shapes of the original layers, so that timm loads
    the folder without this package. For models of this package, `import lambdanets` before
    timm.create_model("local-dir:FOLDER", pretrained=True). README.md describes how to load the model, and has the
    scores and recipe of its run. No file has a path, or the name of data or weights of your own.

    Raises InputError, and writes nothing, for models that timm's hub format does not support: detectors, and networks
    changed after they were created, for example by `replace_convolutions`. Every saved folder was loaded again, and
    its outputs compared.
    """
    folder, run, source = Path(folder), None, model
    if isinstance(model, str | os.PathLike):
        found = find_weights(model)
        run, source = found.folder, load_one_of((Classifier,), found, "cpu")
    network: Any = source.model if isinstance(source, Classifier) else source
    network = getattr(network, "_orig_mod", network)  # of torch.compile
    if not isinstance(network, nn.Module) or not hasattr(network, "pretrained_cfg"):
        raise InputError(
            "model must be a run folder, a weight file, a Classifier or a network from create_model, "
            f"got {type(source).__name__}; timm's hub format is for classifiers"
        )
    if run is not None and folder.exists() and folder.samefile(run) and not (run / CONFIG).is_file():
        raise InputError(f"folder must not be the run folder of the model, got {folder}")
    card = source.card.without_paths() if isinstance(source, Classifier) else None
    metadata = {"format": "pt"} if card is None else {"format": "pt", "lambdanets": card.to_json()}
    tensors = copied(foreign_state_dict(network) if is_adopted(network) else network.state_dict())
    with tempfile.TemporaryDirectory() as temporary:
        saved = Path(temporary)
        try:
            save_for_hf(network, temporary, **_options(card))
        except (AttributeError, TypeError, ValueError) as error:  # of timm
            raise InputError(f"model must be a classifier with arguments of JSON types: {one_line(error)}") from error
        (saved / HUB_WEIGHTS[1]).unlink()  # timm's file would have other names
        (saved / HUB_WEIGHTS[0]).write_bytes(save(tensors, metadata=metadata))
        _check_loaded(network, saved)
        (saved / README).write_bytes(encode_utf8(_readme(folder.resolve().name, network, card, run, license)))
        folder.mkdir(parents=True, exist_ok=True)
        for path in saved.iterdir():
            atomic_write(folder / path.name, path.read_bytes())
    return folder


def _options(card: ClassifierCard | None) -> dict[str, Any]:
    """Return the arguments of `save_for_hf` for a model card: arguments of the network, classes and preprocessing."""
    if card is None:
        return {}
    preprocessing = card.preprocessing
    side, channels = preprocessing.image_size, preprocessing.channels
    data = {name: getattr(preprocessing, name) for name in ("mean", "std", "crop_pct", "interpolation")}
    data |= {name: data[name] * channels for name in ("mean", "std") if len(data[name]) == 1}
    return {
        "model_config": {"label_names": list(card.classes)},
        "model_args": {**card.model_options, **({} if channels == 3 else {"in_chans": channels})},
        "data_config": {"input_size": (channels, side, side), **data},
    }


@torch.inference_mode()
def _check_loaded(network: nn.Module, folder: Path) -> None:
    """Raise InputError unless a folder loads as a classifier with the same outputs as the network."""
    problem = (
        "model must be described by its name and arguments, since timm's hub format has no changes such as those of "
        "replace_convolutions (save its state_dict() instead), got"
    )
    try:
        loaded = load_one_of((Classifier,), folder, "cpu")
    except InputError as error:
        reason = str(error).replace(str(folder), "the saved folder")
        raise InputError(f"{problem} one that does not load: {reason}") from error
    preprocessing = loaded.card.preprocessing
    shape = (1, preprocessing.channels, preprocessing.image_size, preprocessing.image_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected, actual = (each.cpu().float().eval()(images) for each in (copy.deepcopy(network), loaded.model))
    if expected.shape != (1, len(loaded.classes)):
        raise InputError(f"model must be a classifier, got outputs of shape {tuple(expected.shape)}")
    if not torch.allclose(actual, expected, rtol=0, atol=1e-3 * float(expected.abs().max())):
        raise InputError(f"{problem} one with other outputs")


def _readme(name: str, network: Any, card: ClassifierCard | None, run: Path | None, license: str | None) -> str:
    """Return the text of README.md: how to load the model and, for a finished run, its scores and recipe."""
    architecture, recipe = network.pretrained_cfg["architecture"], card.recipe if card is not None else {}
    sections, scores = "", None
    if run is not None and (run / "result.json").is_file():
        result = read_json(run / "result.json", dict[str, Any])
        if "data" not in recipe:  # it is private
            result.pop("data", None)
        rows = "\n".join(f"| {key.replace('_', ' ')} | {result[key]} |" for key in _RESULTS if key in result)
        sections = f"\n## Results\n\n| | |\n|---|---|\n{rows}\n"
        sections += f"\n## Recipe\n\n```json\n{json.dumps(recipe, indent=1)}\n```\n"
        data = result.get("data", "validation images")
        scores = [EvalResult("image-classification", "custom", data, "accuracy", result["top1"], metric_name="top-1")]
    front_matter = ModelCardData(
        license=license,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["lambda-networks", "lambdanets", architecture],
        model_name=name,
        eval_results=scores,
    ).to_yaml()
    fields = {"name": name, "architecture": architecture, "num_classes": network.num_classes}
    return _TEXT.format(front_matter=front_matter, **fields) + sections


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
