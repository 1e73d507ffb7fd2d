"""Builds the model of a recipe, and loads its initial weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lambdanets.files import nfc
from lambdanets.inference.loading import read_model
from lambdanets.layers import RelativeEmbedding
from lambdanets.models.weights import find_weights, load_tensors, match_names
from lambdanets.registry import predictor_of


def build_model(recipe: Any, num_classes: int) -> Any:
    """Build a recipe's network: with timm's interface, or, as a detector, with `HEADS` and `BACKBONE`."""
    model = predictor_of(recipe.task).build(recipe, num_classes)
    return model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU


def load_initial_weights(model: Any, weights: str, classes: Sequence[str]) -> dict[str, str]:
    """Load a weight file, a run folder or a folder in timm's hub format into a model.

    The last layers keep their random weights if the file's have another number of outputs or were trained on other
    classes. A detector may get the weights of a classifier: then only its backbone is loaded. Embedding tables of
    another scope are interpolated. Raises InputError if other tensors do not match.

    Returns the SHA-256 of the file, and its name without the path to it.
    """
    path, source = Path(weights), find_weights(weights)
    tensors, card = read_model(source)
    classes_differ = card is not None and [*map(nfc, card.classes)] != [*map(nfc, classes)]
    backbone = getattr(model, "BACKBONE", "")
    head = None if backbone else model.get_classifier()
    last = head if isinstance(head, tuple) else (head,)  # of distilled transformers, two
    heads = model.HEADS if backbone else [name for name, module in model.named_modules() if module in last]
    is_classifier = backbone and not any(f"{backbone}." in name for name in tensors)
    module = model.get_submodule(backbone) if is_classifier else model
    state = module.state_dict()
    tensors = match_names(tensors, state, source.name)
    if is_classifier:
        tensors = {name: tensors[name] for name in state.keys() & tensors.keys()}
    for name in state.keys() & tensors.keys():
        is_head = any(name.startswith(f"{head}.") for head in heads)
        if is_head and (classes_differ or tensors[name].shape[:1] != state[name].shape[:1]):
            tensors[name] = state[name]
    for name, layer in module.named_modules():
        table = tensors.get(f"{name}.table")
        if isinstance(layer, RelativeEmbedding) and table is not None and table.dim() == layer.table.dim():
            tensors[f"{name}.table"] = layer.resized(table, layer.scope)
    load_tensors(module, tensors, source.name)
    name = str(Path(path.name, source.file.relative_to(path))) if source.file.is_relative_to(path) else weights
    return {"name": name, "sha256": source.sha256()}
