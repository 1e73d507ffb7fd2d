"""Loading of trained models of any task."""

import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lambdanets.device import resolve_device
from lambdanets.errors import InputError
from lambdanets.files import RECIPE
from lambdanets.inference.hub_folder import read_source
from lambdanets.inference.model_card import ModelCard, read_card
from lambdanets.inference.predictor import Predictor
from lambdanets.models.weights import WeightSource, find_weights
from lambdanets.records import read_json
from lambdanets.registry import predictor_of


def load(path: str | os.PathLike[str] | WeightSource, *, device: str | torch.device | None = None) -> Predictor:
    """Load a trained classifier, detector or segmenter from a run folder, weights.safetensors or a checkpoint (.ckpt).

    Args:
        path: a file, a run folder, or the name of a trained model in the package, such as "nuclei". In a run folder,
            weights.safetensors is loaded, or checkpoints/last.ckpt if the run is unfinished.
        device: such as "cpu" or "cuda:1"; by default the GPU if there is one.

    Raises InputError for a file without a model card, for weights that do not match the card, and for a device that
    does not exist.
    """
    return load_one_of((Predictor,), path, device)


def load_one_of(
    kinds: tuple[type[Predictor], ...],
    path: str | os.PathLike[str] | WeightSource,
    device: str | torch.device | None = None,
) -> Any:
    """Load a model as `load` does. Raises InputError if it is none of these kinds of `Predictor`."""
    resolved, source = resolve_device(device), find_weights(path)
    tensors, card = read_model(source)
    model_type = predictor_of(card.task)
    if not issubclass(model_type, kinds):
        expected = " or ".join(kind.card_type.task for kind in kinds)
        raise InputError(f"{source.file} must be a {expected} model, got a {card.task} model")
    return model_type.from_weights(card, tensors, source.name, resolved)


def read_model(source: WeightSource) -> tuple[dict[str, Tensor], ModelCard]:
    """Read the weights of a source and their card. Raises InputError if it has none."""
    tensors, metadata = read_source(source)
    card, folder = read_card(source.file, metadata), source.file.parent
    recipe = (folder.parent if folder.name == "checkpoints" else folder) / RECIPE
    if recipe.is_file():  # weight files do not name the data of the user
        card = replace(card, recipe=read_json(recipe, dict[str, Any]))
    return tensors, card
