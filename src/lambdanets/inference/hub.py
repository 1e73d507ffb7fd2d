"""Model folders in timm's hub format: config.json, model.safetensors and README.md.

timm and this package load them as "local-dir:FOLDER" and, after an upload, as "hf-hub:USER/NAME".
"""

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, HfApi, ModelCardData
from safetensors.torch import save
from timm.models import save_for_hf
from torch import nn

from lambdanets.adoption import foreign_state_dict, is_adopted
from lambdanets.errors import InputError, one_line
from lambdanets.files import RECIPE, atomic_write, encode_utf8
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.loading import load_one_of
from lambdanets.inference.model_card import ClassifierCard, is_public, without_paths
from lambdanets.models.weights import CONFIG, HUB_WEIGHTS, copied, find_weights
from lambdanets.records import read_json

FIGURES = ("curves.png", "predictions.png")
_RESULTS = ("top1", "validation_images", "data", "training_images", "epochs", "parameters", "seconds")
_README = """---
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
_RUN = """
## Results

| | |
|---|---|
{rows}

{figures}

## Recipe

```json
{recipe}
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
    timm.create_model("local-dir:FOLDER", pretrained=True). README.md describes how to load the model. For a run folder,
    it also has the figures, scores and recipe. No file has a path, or the name of data or weights of your own.

    Raises InputError, and writes nothing, for models that timm's hub format does not support: detectors, and networks
    changed after they were created, for example by `replace_convolutions`. Every saved folder was loaded again, and
    its outputs compared.
    """
    run = None
    source: Any = model
    if isinstance(model, str | os.PathLike):
        found = find_weights(model)
        run, source = found.folder, load_one_of((Classifier,), found, "cpu")
    network = source.model if isinstance(source, Classifier) else source
    network = getattr(network, "_orig_mod", network)  # of torch.compile
    if not isinstance(network, nn.Module) or not hasattr(network, "pretrained_cfg"):
        raise InputError(
            "model must be a run folder, a weight file, a Classifier or a network from create_model, "
            f"got {type(source).__name__}; timm's hub format is for classifiers"
        )
    folder = Path(folder)
    if run is not None and folder.exists() and folder.samefile(run) and not (run / CONFIG).is_file():
        raise InputError(f"folder must not be the run folder of the model, got {folder}")
    tensors = copied(foreign_state_dict(network) if is_adopted(network) else network.state_dict())
    card = source.card if isinstance(source, Classifier) else None
    metadata = {"format": "pt"} if card is None else {"format": "pt", "lambdanets": card.to_public_json({})}
    with tempfile.TemporaryDirectory() as temporary:
        config, weights = (Path(temporary, name) for name in (CONFIG, HUB_WEIGHTS[0]))
        try:
            save_for_hf(network, temporary, **_options(card))  # its weights are replaced
        except (AttributeError, TypeError, ValueError) as error:  # of timm
            raise InputError(f"model must be a classifier with arguments of JSON types: {one_line(error)}") from error
        weights.write_bytes(save(tensors, metadata=metadata))
        _check_loaded(network, Path(temporary))
        folder.mkdir(parents=True, exist_ok=True)
        for path in (config, weights):
            atomic_write(folder / path.name, path.read_bytes())
    figures = _figures(run)
    for figure in figures:
        shutil.copyfile(figure, folder / figure.name)
    _write_readme(folder, network, run, [figure.name for figure in figures], license)
    return folder


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


def _write_readme(folder: Path, network: Any, run: Path | None, figures: Sequence[str], license: str | None) -> None:
    """Write README.md: how to load the model and, for a finished run, its recipe, scores and figures."""
    name, architecture = folder.resolve().name, network.pretrained_cfg["architecture"]
    text, scores = "", None
    if run is not None and (run / "result.json").is_file():
        result, recipe = (read_json(run / each, dict[str, Any]) for each in ("result.json", RECIPE))
        if not is_public(recipe["data"]):
            result.pop("data", None)
        rows = [f"| {key.replace('_', ' ')} | {result[key]} |" for key in _RESULTS if key in result]
        images = "\n".join(f"![{name}]({name})" for name in figures)
        text = _RUN.format(rows="\n".join(rows), figures=images, recipe=json.dumps(without_paths(recipe), indent=1))
        data = result.get("data", "validation images")
        scores = [EvalResult("image-classification", "custom", data, "accuracy", result["top1"], metric_name="top-1")]
    card = ModelCardData(
        license=license,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["lambda-networks", "lambdanets", architecture],
        model_name=name,
        eval_results=scores,
    )
    fields = {"front_matter": card.to_yaml(), "architecture": architecture, "num_classes": network.num_classes}
    atomic_write(folder / "README.md", encode_utf8(_README.format(name=name, **fields) + text))


def push_to_hub(
    model: str | os.PathLike[str] | Classifier | nn.Module,
    repo_id: str,
    folder: str | os.PathLike[str],
    *,
    license: str | None = None,
    private: bool = False,
    token: str | None = None,
    commit_message: str = "Upload model",
) -> str:
    """Write a classifier to a folder as `save_pretrained` does, upload it to the Hugging Face hub, and return its URL.

    Args:
        repo_id: "USER/NAME", created if missing, private if `private`. An existing README.md there is kept.
        token: access token; by default that of `hf auth login` or of the environment variable HF_TOKEN.

    Raises InputError if the upload fails; the folder remains.
    """
    figures = _figures(find_weights(model).folder if isinstance(model, str | os.PathLike) else None)
    saved = save_pretrained(model, folder, license=license)
    api = HfApi(token=token, library_name="lambdanets")
    try:
        repository = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        files = [CONFIG, HUB_WEIGHTS[0], *(figure.name for figure in figures)]
        if not api.file_exists(repository, "README.md"):
            files.append("README.md")
        api.upload_folder(repo_id=repository, folder_path=saved, allow_patterns=files, commit_message=commit_message)
    except Exception as error:  # the HTTP library and huggingface_hub raise exceptions of many types
        raise InputError(f"{repo_id} cannot be uploaded: {one_line(error)}; the model is in {saved}") from error
    return f"{api.endpoint}/{repository}"


def _figures(run: Path | None) -> list[Path]:
    """The figures of a run folder."""
    return [run / name for name in FIGURES if (run / name).is_file()] if run is not None else []


def _options(card: ClassifierCard | None) -> dict[str, Any]:
    """Return the arguments of `save_for_hf` for a model card: arguments of the network, classes and preprocessing."""
    if card is None:
        return {}
    preprocessing = card.preprocessing
    side, channels = preprocessing.image_size, preprocessing.channels
    mean, std = (
        values * channels if len(values) == 1 else values for values in (preprocessing.mean, preprocessing.std)
    )
    return {
        "model_config": {"label_names": list(card.classes)},
        "model_args": {**card.model_options, **({} if channels == 3 else {"in_chans": channels})},
        "data_config": {
            "input_size": (channels, side, side),
            "mean": mean,
            "std": std,
            "crop_pct": preprocessing.crop_pct,
            "interpolation": preprocessing.interpolation,
        },
    }
