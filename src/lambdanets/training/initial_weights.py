"""Builds the model of a recipe, and loads its initial weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lambdanets.files import nfc
from lambdanets.inference.loading import read_model
from lambdanets.models.weights import adapt_weights, find_weights, load_tensors
from lambdanets.registry import predictor_of


def build_model(recipe: Any, num_classes: int) -> Any:
    """Build a recipe's network: with timm's interface, or, as a detector, with `HEADS` and `BACKBONE`."""
    model = predictor_of(recipe.task).build(recipe, num_classes)
    return model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU


def load_initial_weights(model: Any, weights: str, classes: Sequence[str]) -> dict[str, str]:
    """Load a weight file, a run folder or a folder in timm's hub format into a model.

    The last layers keep their random weights if the file has none, or for other classes. A detector may get the weights
    of a classifier: then only its backbone is loaded. `adapt_weights` says what else may differ. Raises InputError if
    other tensors do not match.

    Returns the SHA-256 of the file, and its name without the path to it.
    """
    path, source = Path(weights), find_weights(weights)
    tensors, card = read_model(source)
    classes_differ = card is not None and [*map(nfc, card.classes)] != [*map(nfc, classes)]
    backbone = getattr(model, "BACKBONE", "")
    is_classifier = bool(backbone) and not any(f"{backbone}." in name for name in tensors)
    module = model.get_submodule(backbone) if is_classifier else model
    new_heads = True if classes_differ else None
    tensors = adapt_weights(tensors, module, source.name, new_heads=new_heads, is_part=is_classifier)
    load_tensors(module, tensors, source.name)
    name = str(Path(path.name, source.file.relative_to(path))) if source.file.is_relative_to(path) else weights
    return {"name": name, "sha256": source.sha256()}
