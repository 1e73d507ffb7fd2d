"""Says before a run starts whether its model and batch fit into memory."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from lambdanets.device import best_device, free_memory
from lambdanets.errors import InputError
from lambdanets.training.classifier import build_model
from lambdanets.training.recipe import Recipe


def check_memory(recipe: Recipe, classes: int, images: int, free_bytes: int | None = None) -> None:
    """Raise InputError when training by the recipe needs more memory than is free, with a batch size that fits.

    images: how many there are to train on; a batch has no more.
    """
    free = free_memory(best_device()) if free_bytes is None else free_bytes
    try:
        fixed, per_image = training_memory(recipe, classes)
    except InputError:
        raise
    except Exception as error:  # whatever a model raises at a size it cannot take
        raise InputError(
            f"{recipe.model} cannot take images of {recipe.image_size} x {recipe.image_size}: "
            f"{' '.join(str(error).split()) or type(error).__name__}"
        ) from error
    needed = fixed + per_image * min(recipe.batch_size, images)
    if needed <= free:
        return
    fitting = int((free - fixed) // per_image)
    advice = f"batch_size {fitting} would fit" if fitting >= 2 else "choose a smaller model or image_size"
    raise InputError(
        f"training {recipe.model} with batch_size {recipe.batch_size} at image_size {recipe.image_size} needs about "
        f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; {advice}"
    )


def training_memory(recipe: Recipe, classes: int) -> tuple[int, int]:
    """Bytes that a training step holds: those of weights, gradients and optimizer, and those of each image.

    Counted, not measured: the step runs on the meta device, where tensors have shapes and no content, and what
    autograd would keep for the backward pass is added up.
    """
    with torch.device("meta"):
        model = build_model(replace(recipe, weights=None), classes)
        images = torch.empty(2, recipe.channels, recipe.image_size, recipe.image_size)
    own = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.cross_entropy(model.train()(images), torch.zeros(2, dtype=torch.long, device="meta"))
    activations = sum(storage.nbytes() for key, storage in kept.items() if key not in own)
    states = 1 if recipe.optimizer == "sgd" else 2
    return sum(own.values()) * (2 + states), activations // 2
