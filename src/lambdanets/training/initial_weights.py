"""Loads the initial weights of a recipe into its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lambdanets.files import nfc
from lambdanets.inference.loading import read_source
from lambdanets.inference.model_card import read_card
from lambdanets.layers import RelativeEmbedding
from lambdanets.models.weights import find_weights, load_tensors, match_names
from lambdanets.ops.tables import resize_table
from lambdanets.registry import predictor_of


class InitialWeights(NamedTuple):
    """The tensors of a weight file, and whether they were trained on other classes than those of the recipe."""

    source: str
    tensors: dict[str, Tensor]
    classes_differ: bool

    def load_into(self, module: nn.Module, heads: Sequence[str]) -> None:
        """Load the tensors into a module.

        heads: prefixes of the names of the last layers. These are re-initialized if they have another number of outputs
            or if the weights were trained on other classes.

        Embedding tables of another scope are interpolated. Raises InputError if other tensors do not match.
        """
        state = module.state_dict()
        tensors = dict(match_names(self.tensors, state, self.source))
        for name in state.keys() & tensors.keys():
            is_head = any(name.startswith(prefix) for prefix in heads)
            if is_head and (self.classes_differ or tensors[name].shape[:1] != state[name].shape[:1]):
                tensors[name] = state[name]
        for name, layer in module.named_modules():
            table = tensors.get(f"{name}.table")
            if isinstance(layer, RelativeEmbedding) and table is not None and table.dim() == layer.table.dim():
                heads_of_table = [table] if layer.heads is None else table
                resized = torch.stack([resize_table(head, layer.scope) for head in heads_of_table])
                tensors[f"{name}.table"] = resized[0] if layer.heads is None else resized
        load_tensors(module, tensors, self.source)


def read_initial_weights(path: str, classes: int | Sequence[str]) -> InitialWeights:
    """Read a weight file, a run folder or a folder in timm's hub format. classes: names or number of the classes."""
    source = find_weights(path)
    tensors, metadata = read_source(source)
    classes_differ = False
    if not isinstance(classes, int) and "lambdanets" in metadata:
        trained_classes = read_card(source.file, metadata).classes
        classes_differ = [*map(nfc, trained_classes)] != [*map(nfc, classes)]
    return InitialWeights(source.name, tensors, classes_differ)


def build_model(recipe: Any, classes: int | Sequence[str]) -> Any:
    """Build a recipe's network for class names, or a number of classes, and load its initial weights, if any.

    A network with weights has timm's interface: its head is its classifier.
    """
    model = predictor_of(recipe.task).build(recipe, classes if isinstance(classes, int) else len(classes))
    if recipe.weights is not None:
        head = model.get_classifier()
        heads = [f"{name}." for name, module in model.named_modules() if module is head]
        read_initial_weights(recipe.weights, classes).load_into(model, heads)
    return model.to(memory_format=torch.channels_last)  # faster convolutions on CPU and GPU


def identify_weights(weights: str) -> dict[str, str]:
    """Return the SHA-256 of initial weights, and their name without the path to it."""
    path, source = Path(weights), find_weights(weights)
    name = str(Path(path.name, source.file.relative_to(path))) if source.file.is_relative_to(path) else weights
    return {"name": name, "sha256": source.sha256()}
