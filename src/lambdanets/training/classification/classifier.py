"""A trained classifier: which model, how to feed it, its classes, its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lambdanets.device import best_device
from lambdanets.errors import InputError
from lambdanets.models import create_model
from lambdanets.models.weights import load_tensors, read_weights
from lambdanets.training.recipe import Recipe
from lambdanets.training.weight_files import of_other_classes, read_described, resize_tables, weights_in


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode on the best device, the recipe that says how to feed it, and its classes."""

    model: nn.Module
    recipe: Recipe
    classes: tuple[str, ...]


def build_model(recipe: Recipe, classes: int | Sequence[str]) -> nn.Module:
    """The recipe's model for classes, so many or of these names, from the recipe's weights where it names some.

    A classifier in those weights for other classes is left out, and drawn afresh; tables of embeddings of another scope
    are interpolated.
    """
    count = classes if isinstance(classes, int) else len(classes)
    options: dict[str, Any] = dict(recipe.model_options)
    if recipe.drop_path:
        options["drop_path_rate"] = recipe.drop_path
    if recipe.dropout:
        options["drop_rate"] = recipe.dropout
    fixed = {"num_classes", "in_chans", "features_only", "pretrained"} & options.keys()
    if fixed:
        raise InputError(f"model_options must leave {', '.join(sorted(fixed))} to the data and the recipe")
    model: Any = create_model(recipe.model, num_classes=count, in_chans=recipe.channels, **options)
    if recipe.weights is not None:
        path = weights_in(Path(recipe.weights))
        tensors, rest = read_weights(path)
        others = of_other_classes(path, rest, classes)
        head = model.get_classifier()
        head = next((name for name, module in model.named_modules() if module is head), "")
        for name in (f"{head}.weight", f"{head}.bias"):
            if name in tensors and (others or tensors[name].shape[:1] != (count,)):
                tensors[name] = model.state_dict()[name]
        resize_tables(model, tensors)
        load_tensors(model, tensors, str(path))
    return model.to(memory_format=torch.channels_last)  # convolutions are faster so, on CPU and GPU


def with_model_of_weights(recipe: Recipe) -> Recipe:
    """A recipe that names no model, with that of its weights, its options, and how its images are normalized.

    Options that the recipe has of its own are added to the model's, or replace them.
    """
    if recipe.model or recipe.weights is None:
        return recipe
    _, content = read_described(Path(recipe.weights))
    theirs = Recipe.from_fields(content["recipe"], recipe.weights)
    return replace(
        recipe,
        model=theirs.model,
        model_options=theirs.model_options | recipe.model_options,
        channels=theirs.channels,
        mean=theirs.mean,
        std=theirs.std,
    )


def load_classifier(path: str | Path, model: str | None = None) -> Classifier:
    """The classifier in weights.safetensors, in a checkpoint (.ckpt), or in the folder of a run.

    model: build this model instead of the one the file names. Weights that do not fit raise InputError with the names
    that differ, as does a file that does not say what it holds.
    """
    tensors, content = read_described(Path(path))
    recipe = Recipe.from_fields(content["recipe"], str(path))
    if model is not None:
        recipe = replace(recipe, model=model)
    built = build_model(replace(recipe, weights=None), len(content["classes"]))
    load_tensors(built, tensors, str(path))
    return Classifier(built.to(best_device()).eval(), recipe, content["classes"])
