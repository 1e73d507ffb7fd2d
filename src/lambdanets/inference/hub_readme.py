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

`{architecture}` with {num_classes} classes.

```python
import lambdanets as ln

classifier = ln.load("FOLDER")  # this folder, or "hf-hub:USER/NAME"
print(classifier.predict("image.jpg"))

import timm  # adopted networks of timm need only timm

model = timm.create_model("local-dir:FOLDER", pretrained=True)
```
{run}
## Citation

```bibtex
@inproceedings{{bello2021lambdanetworks,
  title={{LambdaNetworks: Modeling Long-Range Interactions Without Attention}},
  author={{Bello, Irwan}},
  booktitle={{International Conference on Learning Representations}},
  year={{2021}}
}}
```
"""


def write_readme(folder: Path, network: Any, run: Path | None, figures: Sequence[str], license: str | None) -> None:
    """Write README.md: how to load the model and, for a run folder, its recipe, scores, versions and figures."""
    result, recipe = (_read(run, name) for name in ("result.json", RECIPE))
    if not is_public(recipe.get("data", "")):
        result.pop("data", None)
    parts = []
    if result:
        rows = [f"| {key.replace('_', ' ')} | {result[key]} |" for key in _RESULTS if key in result]
        parts += ["## Results", "\n".join(["| | |", "|---|---|", *rows]), *(f"![{name}]({name})" for name in figures)]
    if recipe:
        parts += ["## Recipe", f"```json\n{json.dumps(without_paths(recipe), indent=1)}\n```"]
    details = {key: result[key] for key in ("versions", "hardware", "commit") if result.get(key)}
    if details:
        parts += ["## Software and hardware", f"```json\n{json.dumps(details, indent=1)}\n```"]
    name, architecture = folder.resolve().name, network.pretrained_cfg["architecture"]
    data = ModelCardData(
        license=license,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["lambda-networks", "lambdanets", architecture],
        model_name=name,
        eval_results=_scores(result),
    )
    text = _TEXT.format(
        front_matter=data.to_yaml(),
        name=name,
        architecture=architecture,
        num_classes=network.num_classes,
        run="".join(f"\n{part}\n" for part in parts),
    )
    atomic_write(folder / "README.md", encode_utf8(text))


def _read(run: Path | None, name: str) -> dict[str, Any]:
    if run is None or not (run / name).is_file():
        return {}
    return read_json(run / name, dict[str, Any])


def _scores(result: dict[str, Any]) -> list[EvalResult] | None:
    if "top1" not in result:
        return None
    data = result.get("data", "validation images")
    return [EvalResult("image-classification", "custom", data, "accuracy", result["top1"], metric_name="top-1")]
