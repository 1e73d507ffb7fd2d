"""README.md of a model folder: the model card that the Hugging Face hub shows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from lambdanets.files import RECIPE, atomic_write, encode_utf8
from lambdanets.inference.model_card import is_public, without_paths
from lambdanets.records import read_json

_RESULTS = ("top1", "validation_images", "data", "training_images", "epochs", "parameters", "seconds")
_TEXT = """---
{front_matter}
---

# {name}

`{architecture}` with {num_classes} classes, after Bello (2021), LambdaNetworks.

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


def write_readme(folder: Path, network: Any, run: Path | None, figures: Sequence[str], license: str | None) -> None:
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
    atomic_write(folder / "README.md", encode_utf8(_TEXT.format(name=name, **fields) + text))
