"""Weights: pickles that run code, non-finite values, different shapes, and invalid model cards."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from .files import copy, file, flip_byte, folder, malicious_pickle, pipe, truncate
from .inputs import Input, Setup, accepted, rejected
from .options import TRAIN

Tensors = dict[str, torch.Tensor]


def edit_weights(
    edit_tensors: Callable[[Tensors], Any] = lambda tensors: None,
    edit_card: Callable[[dict[str, Any]], Any] = lambda card: None,
    metadata: Mapping[str, str] | None = None,
) -> Setup:
    """Write w.safetensors: a run's weights, with changed tensors, model card or metadata."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        with safe_open(fixtures["run"] / "weights.safetensors", "pt") as saved:
            content = {name: saved.get_tensor(name).clone() for name in saved.keys()}  # noqa: SIM118
            card = json.loads(saved.metadata()["lambdanets"])
        edit_tensors(content)
        returned = edit_card(card)
        text = json.dumps(card if returned is None else returned)
        save_file(content, cwd / "w.safetensors", {"lambdanets": text} if metadata is None else dict(metadata))

    return setup


def edit_checkpoint(change: Callable[[dict[str, Any]], Any]) -> Setup:
    """Write w.ckpt: a run's last checkpoint, changed."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        content = torch.load(fixtures["run"] / "checkpoints/last.ckpt", weights_only=True)
        returned = change(content)
        torch.save(content if returned is None else returned, cwd / "w.ckpt")

    return setup


def set_first_element(value: float, suffix: str = "") -> Callable[[Tensors], Any]:
    """Set the first element of each floating-point tensor whose name ends with `suffix`."""

    def change(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and name.endswith(suffix):
                tensor.view(-1)[0] = value

    return change


def cast(dtype: torch.dtype) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})


def set_card(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    """Change fields of the model card."""
    return lambda card: card.update(fields)


def set_preprocessing(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda card: card["preprocessing"].update(fields)


# Weights with non-finite values.
NON_FINITE = {
    "NaN in every tensor": edit_weights(set_first_element(float("nan"))),
    "inf in every tensor": edit_weights(set_first_element(float("inf"))),
    "-inf in one tensor": edit_weights(set_first_element(float("-inf"), "fc.bias")),
    "NaN in a running variance": edit_weights(set_first_element(float("nan"), "running_var")),
}
EVALUATE, PREDICT = "evaluate w.safetensors", "predict w.safetensors {photo}"
# Changes that make the model card invalid.
INVALID_CARDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda card: [],
    "a number": lambda card: 5,
    "no classes": lambda card: card.pop("classes") and None,
    "no recipe": lambda card: card.pop("recipe") and None,
    "classes is a string": lambda card: card.update(classes="ab"),
    "classes is a number": lambda card: card.update(classes=2),
    "classes are numbers": lambda card: card.update(classes=[1, 2]),
    "classes is an object": lambda card: card.update(classes={"a": 1, "b": 2}),
    "an empty list of classes": lambda card: card.update(classes=[]),
    "one class": lambda card: card.update(classes=["a"]),
    "three classes": lambda card: card.update(classes=["a", "b", "c"]),
    "recipe is a list": lambda card: card.update(recipe=[]),
    "an unknown task": set_card(task="poetry"),
    "another task": set_card(task="detection"),
    "a task is a number": set_card(task=5),
    "an unknown model": set_card(model="nonsense"),
    "another model": set_card(model="resnet10t"),
    "a model is a number": set_card(model=5),
    "an image size of 0": set_preprocessing(image_size=0),
    "an image size is a string": set_preprocessing(image_size="8"),
    "channels 4": set_preprocessing(channels=4),
    "a mean of NaN": set_preprocessing(mean=[float("nan")]),
    "model_options is a list": set_card(model_options=[]),
    "an unknown model option": set_card(model_options={"nonsense": 1}),
    "a checkpoint_path": set_card(model_options={"checkpoint_path": "evil.pth"}),
    "a checkpoint_path for a timm model": set_card(model="resnet10t", model_options={"checkpoint_path": "evil.pth"}),
}
# Changes after which the tensors do not fit the model.
INVALID_TENSORS: dict[str, Callable[[Tensors], Any]] = {
    "no tensors": lambda tensors: tensors.clear(),
    "one tensor missing": lambda tensors: tensors.popitem() and None,
    "one additional tensor": lambda tensors: tensors.update(other=torch.zeros(3)),
    "a tensor of a different shape": lambda tensors: tensors.update({next(iter(tensors)): torch.zeros(3, 3)}),
    "a scalar tensor": lambda tensors: tensors.update({next(iter(tensors)): torch.tensor(1.0)}),
    "an empty tensor": lambda tensors: tensors.update({next(iter(tensors)): torch.zeros(0)}),
}
PICKLES = ("pickle", "dictionary", "zip", "torch.save")

WEIGHTS: list[Input] = [
    *(
        rejected(command, r"w\.safetensors.*(NaN|nan|inf|finite)", setup, name=f"weights: {case}")
        for case, setup in NON_FINITE.items()
        for command in (
            EVALUATE,
            PREDICT,
            "pseudo-label w.safetensors {shards} new",
            f"{TRAIN} --weights w.safetensors",
        )
    ),
    *(
        rejected(
            EVALUATE,
            r"w\.safetensors|classes|evil|nonsense",
            edit_weights(edit_card=change),
            malicious_pickle("evil.pth"),
            name=f"model card: {case}",
        )
        for case, change in INVALID_CARDS.items()
    ),
    *(
        rejected(PREDICT, r"w\.safetensors", edit_weights(change), name=f"tensors: {case}")
        for case, change in INVALID_TENSORS.items()
    ),
    *(
        rejected(
            f"{command} evil.{suffix}",
            rf"evil\.{suffix}",
            malicious_pickle(f"evil.{suffix}", container),
            name=container,
        )
        for command in ("evaluate", f"{TRAIN} --weights")
        for suffix in ("ckpt", "pth", "safetensors")
        for container in PICKLES
    ),
    rejected("predict evil.ckpt {photo}", r"evil\.ckpt", malicious_pickle("evil.ckpt", "zip")),
    rejected("detect evaluate evil.ckpt", r"evil\.ckpt", malicious_pickle("evil.ckpt", "zip")),
    rejected("pseudo-label evil.ckpt {shards} new", r"evil\.ckpt", malicious_pickle("evil.ckpt", "zip")),
    rejected(
        f"{TRAIN} --model resnet10t --model-options checkpoint_path evil.pth",
        "checkpoint_path|evil",
        malicious_pickle("evil.pth"),
    ),
    rejected(EVALUATE, "model card", edit_weights(metadata={}), name="no model card"),
    rejected(EVALUATE, "model card", edit_weights(metadata={"lambdanets": "{"}), name="a model card that is not JSON"),
    rejected(
        EVALUATE, "model card", edit_weights(metadata={"lambdanets": "[" * 100_000}), name="a deeply nested model card"
    ),
    rejected(EVALUATE, r"w\.safetensors", edit_weights(), truncate("w.safetensors", 0.5), name="truncated weights"),
    rejected(
        EVALUATE,
        r"w\.safetensors",
        edit_weights(),
        truncate("w.safetensors", 9),
        name="weights truncated in their header",
    ),
    rejected(EVALUATE, r"w\.safetensors", file("w.safetensors", b"\xff" * 64), name="a header longer than the file"),
    rejected(EVALUATE, r"w\.safetensors", file("w.safetensors", b"\x02" + b"\0" * 7 + b"{}"), name="no tensors"),
    rejected(EVALUATE, r"w\.safetensors", folder("w.safetensors"), name="a folder named w.safetensors"),
    rejected(EVALUATE, r"w\.safetensors", pipe("w.safetensors"), name="a pipe named w.safetensors"),
    rejected("evaluate w.ckpt", r"w\.ckpt", copy("run/checkpoints/last.ckpt", "w.ckpt"), truncate("w.ckpt", 0.5)),
    rejected("evaluate w.ckpt", r"w\.ckpt", copy("run/checkpoints/last.ckpt", "w.ckpt"), flip_byte("w.ckpt", 0.01)),
    rejected("evaluate w.ckpt", r"w\.ckpt", edit_checkpoint(lambda content: content.pop("lambdanets") and None)),
    rejected(
        "evaluate w.ckpt",
        r"w\.ckpt",
        edit_checkpoint(lambda content: content.update(lambdanets=5)),
        name="lambdanets is a number",
    ),
    rejected("evaluate w.ckpt", r"w\.ckpt", edit_checkpoint(lambda content: content.update(state_dict={}))),
    rejected("evaluate w.ckpt", r"w\.ckpt", edit_checkpoint(lambda content: content.update(state_dict=[1, 2]))),
    rejected("evaluate w.ckpt", r"w\.ckpt", edit_checkpoint(lambda content: [1, 2]), name="a list"),
    rejected(
        "evaluate w.ckpt", r"w\.ckpt", edit_checkpoint(lambda content: {"a": 1}), name="no tensors in a checkpoint"
    ),
    accepted("evaluate w.ckpt", "top-1", edit_checkpoint(lambda content: content.update(other=[1, 2]))),
    accepted(EVALUATE, "top-1", edit_weights(cast(torch.float64)), name="weights in float64"),
    accepted(EVALUATE, "top-1", edit_weights(cast(torch.bfloat16)), name="weights in bfloat16"),
    accepted(
        EVALUATE, "top-1", edit_weights(edit_card=set_card(additional="x")), name="a model card with an unknown field"
    ),
    accepted(
        f"{TRAIN} --weights w.safetensors", "top-1", edit_weights(metadata={}), name="weights without a model card"
    ),
    rejected(
        f"{TRAIN} --weights w.safetensors",
        r"w\.safetensors",
        edit_weights(lambda t: t.clear()),
        name="no tensors to fine-tune",
    ),
    rejected(f"{TRAIN} --weights {{images}}", "images"),
    rejected("evaluate {images}", "images"),
    rejected("evaluate {photo}", "photo"),
    rejected("evaluate {run} --data nowhere", "nowhere"),
    rejected("evaluate {run} --data digits", "class"),
    rejected("evaluate {run} --data-root nowhere", "data[-_]root"),
]
