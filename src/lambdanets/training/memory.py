"""Says before a run starts how many images at a time fit into memory with the model."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from lambdanets.device import best_device, free_memory
from lambdanets.errors import InputError
from lambdanets.training.classifier import build_model
from lambdanets.training.recipe import Recipe


def images_that_fit(recipe: Recipe, classes: int, wanted: int, free_bytes: int | None = None) -> int:
    """How many of the wanted images can be computed at a time: all, or half, or half of that, and so on.

    free_bytes: of memory; by default those of the device. Raises InputError where not even two images fit, and where
    the model cannot take images of the recipe's size.
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
    images = wanted
    while images > 2 and fixed + per_image * images > free:
        images = -(-images // 2)
    if fixed + per_image * images <= free:
        return images
    raise InputError(
        f"training {recipe.model} at image_size {recipe.image_size} with two images at a time needs about "
        f"{(fixed + 2 * per_image) / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; choose a smaller model or "
        "image_size"
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
    if recipe.precision in ("bf16-mixed", "16-mixed"):
        activations //= 2  # all but sums, norms' statistics and the like
    return sum(own.values()) * (2 + states_of(recipe)), activations // 2


def states_of(recipe: Recipe) -> int:
    """Numbers kept for each parameter beside itself and its gradient: the optimizer's, and the average."""
    return (1 if recipe.optimizer == "sgd" else 2) + (recipe.average_decay is not None)
