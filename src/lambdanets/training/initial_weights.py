"""Loads initial weights into a model with a single head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lambdanets.inference.weights import find_weights, has_different_classes, read_found_weights, resize_tables
from lambdanets.models.weights import load_tensors


def load_initial_weights(model: Any, path: Path, classes: int | Sequence[str]) -> None:
    """Load the weights of a file or run folder into a model with timm's interface.

    The last layer is re-initialized if it has another number of outputs or if the weights were trained on other
    classes. Embedding tables of another scope are interpolated. Raises InputError if other tensors do not match.
    """
    file = find_weights(path)
    tensors, metadata = read_found_weights(file)
    classes_differ = has_different_classes(file, metadata, classes)
    head, state = model.get_classifier(), model.state_dict()
    head_name = next((name for name, module in model.named_modules() if module is head), "")
    for name in (f"{head_name}.weight", f"{head_name}.bias"):
        if name in tensors and (classes_differ or tensors[name].shape[:1] != state[name].shape[:1]):
            tensors[name] = state[name]
    resize_tables(model, tensors)
    load_tensors(model, tensors, str(file))
