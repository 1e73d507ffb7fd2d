"""README.md of a model folder: the model card that the Hugging Face hub shows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from torch import nn

from lambdanets.adoption import is_adopted
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.inference.model_card import ClassifierCard, is_public, without_paths
from lambdanets.models import list_models
from lambdanets.records import read_json

_RUN_LINES = {
    "top1": "Top-1 accuracy on the validation images",
    "validation_images": "Validation images",
    "data": "Data",
    "training_images": "Training images",
    "epochs": "Epochs",
    "parameters": "Parameters",
    "seconds": "Training time in seconds",
}
_CITATION = """```bibtex
@inproceedings{bello2021lambdanetworks,
  title={LambdaNetworks: Modeling Long-Range Interactions Without Attention},
  author={Bello, Irwan},
  booktitle={International Conference on Learning Representations},
  year={2021}
}
```"""


def write_readme(
    folder: Path,
    network: Any,
    card: ClassifierCard | None,
    run: Path | None,
    figures: Sequence[str],
    license: str | None,
) -> None:
    """Write README.md: how to load the model and, for a run folder, its recipe, scores, versions and figures."""
    result, recipe = (_read(run, name) for name in ("result.json", "recipe.json"))
    if not is_public(recipe.get("data", "")):
        result.pop("data", None)
    recipe = without_paths(recipe)
    architecture = network.pretrained_cfg["architecture"]
    text = [
        f"---\n{_front_matter(architecture, folder.resolve().name, result, license)}\n---",
        f"# {folder.resolve().name}",
        _description(architecture, network, card),
        "## Use",
        _usage(architecture, network),
    ]
    if result:
        rows = [f"| {label} | {result[key]} |" for key, label in _RUN_LINES.items() if key in result]
        text += ["## Results", "\n".join(["| | |", "|---|---|", *rows])]
        text += [f"![{name}]({name})" for name in figures]
    if recipe:
        text += ["## Recipe", f"```json\n{json.dumps(recipe, indent=1)}\n```"]
    if result:
        details = {key: result[key] for key in ("versions", "hardware", "commit") if result.get(key)}
        text += ["## Software and hardware", f"```json\n{json.dumps(details, indent=1)}\n```"]
    text += ["## Citation", _CITATION]
    atomic_write(folder / "README.md", encode_utf8("\n\n".join(text) + "\n"))


def _read(run: Path | None, name: str) -> dict[str, Any]:
    if run is None or not (run / name).is_file():
        return {}
    return read_json(run / name, dict[str, Any])


def _front_matter(architecture: str, name: str, result: dict[str, Any], license: str | None) -> str:
    scores = None
    if "top1" in result:
        data = result.get("data", "validation images")
        scores = [EvalResult("image-classification", "custom", data, "accuracy", result["top1"], metric_name="top-1")]
    data = ModelCardData(
        license=license,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["lambda-networks", "lambdanets", architecture],
        model_name=name,
        eval_results=scores,
    )
    return data.to_yaml()


def _description(architecture: str, network: nn.Module, card: ClassifierCard | None) -> str:
    package = "lambdanets" if architecture in list_models() else "timm"
    text = f"`{architecture}` of {package}, {network.num_classes} classes"
    if card is None:
        return f"{text}."
    shown = ", ".join(card.classes[:10]) + (", …" if len(card.classes) > 10 else "")
    preprocessing = card.preprocessing
    side = preprocessing.image_size
    return f"{text}: {shown}. Input: {preprocessing.mode}, {side} x {side} pixels."


def _usage(architecture: str, network: nn.Module) -> str:
    lines = ["import lambdanets as ln", "", 'classifier = ln.load("FOLDER")  # this folder, or "hf-hub:USER/NAME"']
    timm = "timm, without this package" if is_adopted(network) else "timm"
    lines += ['print(classifier.predict("image.jpg"))', "", f"# in {timm}", "import timm", ""]
    lines += ['model = timm.create_model("local-dir:FOLDER", pretrained=True)']
    return "```python\n" + "\n".join(lines) + "\n```"
