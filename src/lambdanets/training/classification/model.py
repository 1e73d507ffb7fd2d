"""Builds the model of a classification recipe and its model card."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lambdanets.errors import InputError
from lambdanets.inference.loading import read_model
from lambdanets.inference.model_card import ClassifierCard, DataSource, make_card
from lambdanets.models import create_model
from lambdanets.models.weights import find_weights
from lambdanets.records import shared_fields
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.initial_weights import load_initial_weights


def make_model_card(recipe: ClassificationRecipe, classes: Sequence[str]) -> ClassifierCard:
    """Return the model card of the recipe's classifier."""
    source = DataSource(**shared_fields(recipe, DataSource))
    return make_card(ClassifierCard, recipe, classes=tuple(classes), stretch=False, source=source)


def build_model(recipe: ClassificationRecipe, classes: int | Sequence[str]) -> nn.Module:
    """Build the recipe's model for a number of classes or for class names, and load its initial weights, if any.

    The head is re-initialized if the weights were trained on other classes. Embedding tables of another scope are
    interpolated.
    """
    class_names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    card = make_model_card(recipe, class_names)
    options: dict[str, Any] = dict(card.model_options)
    if recipe.drop_path:
        options["drop_path_rate"] = recipe.drop_path
    if recipe.dropout:
        options["drop_rate"] = recipe.dropout
    model: Any = create_model(recipe.model, num_classes=len(class_names), in_chans=recipe.channels, **options)
    if recipe.weights is not None:
        load_initial_weights(model, recipe.weights, classes)
    return model.to(memory_format=torch.channels_last)  # makes convolutions faster on CPU and GPU


def resolve_model_from_weights(recipe: ClassificationRecipe) -> ClassificationRecipe:
    """If the recipe names no model, take model, options, channels and normalization from its initial weights.

    The recipe's own model_options override those of the weights.
    """
    if recipe.model or recipe.weights is None:
        return recipe
    card = read_model(find_weights(recipe.weights))[1]
    if not isinstance(card, ClassifierCard):
        raise InputError(f"weights must be those of a classifier if no model is given, got a {card.task} model")
    options: dict[str, Any] = card.model_options | recipe.model_options
    return replace(
        recipe,
        model=card.model,
        model_options=options,
        channels=card.preprocessing.channels,
        mean=card.preprocessing.mean,
        std=card.preprocessing.std,
    )
