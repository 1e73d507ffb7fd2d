"""Loads the initial weights of a recipe into its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from lambdanets.inference.weights import has_different_classes, read_found_weights, resize_tables
from lambdanets.models.packaged import find_weights
from lambdanets.models.weights import load_tensors, match_names


class InitialWeights(NamedTuple):
    """The tensors of a weight file, and whether they were trained on other classes than those of the recipe."""

    file: Path
    tensors: dict[str, Tensor]
    classes_differ: bool

    def load_into(self, module: nn.Module, heads: Sequence[str]) -> None:
        """Load the tensors into a module.

        heads: prefixes of the names of the last layers. These are re-initialized if they have another number of outputs
            or if the weights were trained on other classes.

        Embedding tables of another scope are interpolated. Raises InputError if other tensors do not match.
        """
        state = module.state_dict()
        tensors = dict(match_names(self.tensors, state, str(self.file)))
        for name in state.keys() & tensors.keys():
            is_head = any(name.startswith(prefix) for prefix in heads)
            if is_head and (self.classes_differ or tensors[name].shape[:1] != state[name].shape[:1]):
                tensors[name] = state[name]
        resize_tables(module, tensors)
        load_tensors(module, tensors, str(self.file))


def read_initial_weights(path: Path, classes: int | Sequence[str]) -> InitialWeights:
    """Read a weight file, a run folder or a folder in timm's hub format. classes: names or number of the classes."""
    file = find_weights(path)
    tensors, metadata = read_found_weights(file)
    return InitialWeights(file, tensors, has_different_classes(file, metadata, classes))


def load_initial_weights(model: Any, path: Path, classes: int | Sequence[str]) -> None:
    """Load the weights of a file or run folder into a model with timm's interface, whose head is its classifier."""
    head = model.get_classifier()
    heads = [f"{name}." for name, module in model.named_modules() if module is head]
    read_initial_weights(path, classes).load_into(model, heads)
