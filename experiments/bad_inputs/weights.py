"""Weights: pickles with code, non-finite values, other shapes, and metadata with wrong fields."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from .inputs import Input, Make, accepted, refused
from .makers import copied, cut, file, flipped, folder, pickled_code, pipe
from .options import TRAIN

Tensors = dict[str, torch.Tensor]


def weights(
    tensors: Callable[[Tensors], Any] = lambda tensors: None,
    describe: Callable[[dict[str, Any]], Any] = lambda described: None,
    metadata: Mapping[str, str] | None = None,
) -> Make:
    """The file w.safetensors: a run's weights, with other tensors or metadata."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        with safe_open(places["run"] / "weights.safetensors", "pt") as opened:
            content = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            described = json.loads(opened.metadata()["lambdanets"])
        tensors(content)
        returned = describe(described)
        text = json.dumps(described if returned is None else returned)
        save_file(content, here / "w.safetensors", {"lambdanets": text} if metadata is None else dict(metadata))

    return make


def checkpoint(change: Callable[[dict[str, Any]], Any]) -> Make:
    """The file w.ckpt: a run's last checkpoint, modified."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        content = torch.load(places["run"] / "checkpoints/last.ckpt", weights_only=True)
        returned = change(content)
        torch.save(content if returned is None else returned, here / "w.ckpt")

    return make


def fill(value: float, only: str = "") -> Callable[[Tensors], Any]:
    """Set the first element of all floating-point tensors whose name ends with `only`."""

    def change(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and name.endswith(only):
                tensor.view(-1)[0] = value

    return change


def cast(kind: torch.dtype) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: tensor.to(kind) for name, tensor in tensors.items()})


def card(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    """Change fields of the model card."""
    return lambda described: described.update(fields)


def preprocessing(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda described: described["preprocessing"].update(fields)


def recipe(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    """Change fields of the recipe in a file without a model card, as runs wrote formerly."""
    return lambda described: {"classes": described["classes"], "recipe": described["recipe"] | fields}


NOT_FINITE = {
    "NaN in all": weights(fill(float("nan"))),
    "inf in all": weights(fill(float("inf"))),
    "-inf in one": weights(fill(float("-inf"), "fc.bias")),
    "NaN in a batch norm": weights(fill(float("nan"), "running_var")),
}
EVALUATE, PREDICT = "evaluate w.safetensors", "predict w.safetensors {photo}"
# Invalid metadata: the error, and the change.
DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda described: [],
    "a number": lambda described: 5,
    "no classes": lambda described: described.pop("classes") and None,
    "no recipe": lambda described: described.pop("recipe") and None,
    "classes is a string": lambda described: described.update(classes="ab"),
    "classes is a number": lambda described: described.update(classes=2),
    "classes are numbers": lambda described: described.update(classes=[1, 2]),
    "classes is an object": lambda described: described.update(classes={"a": 1, "b": 2}),
    "no class": lambda described: described.update(classes=[]),
    "one class": lambda described: described.update(classes=["a"]),
    "three classes": lambda described: described.update(classes=["a", "b", "c"]),
    "recipe is a list": lambda described: described.update(recipe=[]),
    "an unknown task": card(task="poetry"),
    "an unknown task in a recipe": recipe(task="poetry"),
    "another task": card(task="detection"),
    "a task is a number": card(task=5),
    "an unknown model": card(model="nonsense"),
    "another model": card(model="resnet10t"),
    "a model is a number": card(model=5),
    "an unknown model in a recipe": recipe(model="nonsense"),
    "an image size of 0": preprocessing(image_size=0),
    "an image size is a string": preprocessing(image_size="8"),
    "channels 4": preprocessing(channels=4),
    "a mean of NaN": preprocessing(mean=[float("nan")]),
    "options of the model is a list": card(model_options=[]),
    "an unknown option of the model": card(model_options={"nonsense": 1}),
    "a checkpoint_path": card(model_options={"checkpoint_path": "evil.pth"}),
    "a checkpoint_path of another model": card(model="resnet10t", model_options={"checkpoint_path": "evil.pth"}),
}
TENSORS: dict[str, Callable[[Tensors], Any]] = {
    "none": lambda tensors: tensors.clear(),
    "one missing": lambda tensors: tensors.popitem() and None,
    "one more": lambda tensors: tensors.update(other=torch.zeros(3)),
    "of another shape": lambda tensors: tensors.update({next(iter(tensors)): torch.zeros(3, 3)}),
    "a number": lambda tensors: tensors.update({next(iter(tensors)): torch.tensor(1.0)}),
    "empty": lambda tensors: tensors.update({next(iter(tensors)): torch.zeros(0)}),
}
HOW = ("pickle", "dictionary", "zip", "torch.save")

WEIGHTS: list[Input] = [
    *(
        refused(command, r"w\.safetensors.*(NaN|nan|inf|finite)", make, name=f"weights: {what}")
        for what, make in NOT_FINITE.items()
        for command in (
            EVALUATE,
            PREDICT,
            "pseudo-label w.safetensors {shards} new",
            f"{TRAIN} --weights w.safetensors",
        )
    ),
    *(
        refused(
            EVALUATE,
            r"w\.safetensors|classes|evil|nonsense",
            weights(describe=change),
            pickled_code("evil.pth"),
            name=f"weights that say: {what}",
        )
        for what, change in DESCRIPTIONS.items()
    ),
    *(
        refused(PREDICT, r"w\.safetensors", weights(change), name=f"tensors: {what}")
        for what, change in TENSORS.items()
    ),
    *(
        refused(f"{command} evil.{suffix}", rf"evil\.{suffix}", pickled_code(f"evil.{suffix}", how), name=how)
        for command in ("evaluate", f"{TRAIN} --weights")
        for suffix in ("ckpt", "pth", "safetensors")
        for how in HOW
    ),
    refused("predict evil.ckpt {photo}", r"evil\.ckpt", pickled_code("evil.ckpt", "zip")),
    refused("detect evaluate evil.ckpt", r"evil\.ckpt", pickled_code("evil.ckpt", "zip")),
    refused("pseudo-label evil.ckpt {shards} new", r"evil\.ckpt", pickled_code("evil.ckpt", "zip")),
    refused(
        f"{TRAIN} --model resnet10t --model-options checkpoint_path evil.pth",
        "checkpoint_path|evil",
        pickled_code("evil.pth"),
    ),
    refused(EVALUATE, "model card", weights(metadata={}), name="no description"),
    refused(EVALUATE, "model card", weights(metadata={"lambdanets": "{"}), name="a description that is no JSON"),
    refused(EVALUATE, "model card", weights(metadata={"lambdanets": "[" * 100_000}), name="a deep description"),
    refused(EVALUATE, r"w\.safetensors", weights(), cut("w.safetensors", 0.5), name="cut weights"),
    refused(EVALUATE, r"w\.safetensors", weights(), cut("w.safetensors", 9), name="weights cut in their header"),
    refused(EVALUATE, r"w\.safetensors", file("w.safetensors", b"\xff" * 64), name="a header longer than the file"),
    refused(EVALUATE, r"w\.safetensors", file("w.safetensors", b"\x02" + b"\0" * 7 + b"{}"), name="no tensors"),
    refused(EVALUATE, r"w\.safetensors", folder("w.safetensors"), name="a folder called like weights"),
    refused(EVALUATE, r"w\.safetensors", pipe("w.safetensors"), name="a pipe called like weights"),
    refused("evaluate w.ckpt", r"w\.ckpt", copied("run/checkpoints/last.ckpt", "w.ckpt"), cut("w.ckpt", 0.5)),
    refused("evaluate w.ckpt", r"w\.ckpt", copied("run/checkpoints/last.ckpt", "w.ckpt"), flipped("w.ckpt", 0.01)),
    refused("evaluate w.ckpt", r"w\.ckpt", checkpoint(lambda content: content.pop("lambdanets") and None)),
    refused("evaluate w.ckpt", r"w\.ckpt", checkpoint(lambda content: content.update(lambdanets=5)), name="a number"),
    refused("evaluate w.ckpt", r"w\.ckpt", checkpoint(lambda content: content.update(state_dict={}))),
    refused("evaluate w.ckpt", r"w\.ckpt", checkpoint(lambda content: content.update(state_dict=[1, 2]))),
    refused("evaluate w.ckpt", r"w\.ckpt", checkpoint(lambda content: [1, 2]), name="a list"),
    refused("evaluate w.ckpt", r"w\.ckpt", checkpoint(lambda content: {"a": 1}), name="no tensors in a checkpoint"),
    accepted("evaluate w.ckpt", "top-1", checkpoint(lambda content: content.update(other=[1, 2]))),
    accepted(EVALUATE, "top-1", weights(cast(torch.float64)), name="weights in float64"),
    accepted(EVALUATE, "top-1", weights(cast(torch.bfloat16)), name="weights in bfloat16"),
    accepted(EVALUATE, "top-1", weights(describe=card(more="x")), name="a description that says more"),
    accepted(f"{TRAIN} --weights w.safetensors", "top-1", weights(metadata={}), name="weights without a description"),
    refused(
        f"{TRAIN} --weights w.safetensors",
        r"w\.safetensors",
        weights(lambda t: t.clear()),
        name="no tensors to start from",
    ),
    refused(f"{TRAIN} --weights {{images}}", "images"),
    refused("evaluate {images}", "images"),
    refused("evaluate {photo}", "photo"),
    refused("evaluate {run} --model nonsense", "nonsense"),
    refused("evaluate {run} --model resnet18", "architecture"),
    refused("evaluate {run} --data nowhere", "nowhere"),
    refused("evaluate {run} --data digits", "class"),
    refused("evaluate {run} --data-root nowhere", "data[-_]root"),
]
