"""Estimates the memory of a training step and the largest micro-batch that fits."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.device import best_device, free_memory
from lambdanets.errors import InputError, one_line
from lambdanets.training.recipe import OPTIMIZERS, TrainingRecipe

_cache: dict[str, tuple[int, int]] = {}  # results of training_memory by MemoryProbe.key


@dataclasses.dataclass(frozen=True)
class MemoryProbe(ABC):
    """Forward pass and loss of a recipe on synthetic images, to estimate the memory of a training step."""

    recipe: TrainingRecipe

    @property
    def key(self) -> str:
        """Cache key. It does not contain paths and the seed, which do not change the memory."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        recipe = dataclasses.asdict(fields.pop("recipe"))
        for name in (*self.recipe.PATHS, "seed"):
            del recipe[name]
        return repr((type(self), fields, recipe))

    @abstractmethod
    def build(self) -> nn.Module:
        """Build the model with random weights."""

    @abstractmethod
    def loss(self, model: nn.Module, batch_size: int, device: torch.device) -> Tensor:
        """Return the loss of `batch_size` synthetic images on a device, which may be the meta device."""

    @property
    def size(self) -> str:
        """The image size as text, for messages; all recipes have a field `image_size`."""
        side = vars(self.recipe)["image_size"]
        return f"{side} x {side}"


def largest_micro_batch(probe: MemoryProbe, requested: int, free_bytes: int | None = None) -> int:
    """Return the requested micro-batch size, halved until it fits.

    free_bytes: memory that may be used; if None, the free memory of the device. Raises InputError if the recipe's
    smallest micro-batch does not fit, or if the model does not support the recipe's image size.
    """
    free = free_memory(best_device()) if free_bytes is None else free_bytes
    try:
        fixed, per_image = training_memory(probe)
    except InputError:
        raise
    except Exception as error:  # models raise errors of any type for an unsupported size
        raise InputError(f"{probe.recipe.model} cannot take images of {probe.size}: {one_line(error)}") from error
    micro_batch, min_micro_batch = requested, probe.recipe.MIN_MICRO_BATCH
    while micro_batch > min_micro_batch and fixed + per_image * micro_batch > free:
        micro_batch = -(-micro_batch // 2)
    if fixed + per_image * micro_batch <= free:
        return micro_batch
    raise InputError(
        f"training {probe.recipe.model} on images of {probe.size} with a micro-batch of {min_micro_batch} needs about "
        f"{(fixed + min_micro_batch * per_image) / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are free; "
        "choose a smaller model or image_size"
    )


def training_memory(probe: MemoryProbe) -> tuple[int, int]:
    """Return the memory of a training step in bytes: (weights, gradients and optimizer states; activations per image).

    The forward pass runs on the meta device, and the sizes of the tensors that autograd saves for the backward pass are
    added up. This takes seconds for a large model, so results are cached.
    """
    if probe.key not in _cache:
        _cache[probe.key] = _measure_on_meta_device(probe)
    return _cache[probe.key]


def _measure_on_meta_device(probe: MemoryProbe) -> tuple[int, int]:
    meta = torch.device("meta")
    with meta:
        model = probe.build()
    parameters = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}
    saved: dict[int, Any] = {}

    def record(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        probe.loss(model.train(), 2, meta)
    activations = sum(
        storage.nbytes() for key, storage in saved.items() if key not in parameters and storage.device.type == "meta"
    )
    if probe.recipe.precision in ("bf16-mixed", "16-mixed"):
        activations //= 2  # almost all activations are in half precision
    return sum(parameters.values()) * (2 + states_per_parameter(probe.recipe)), activations // 2


def states_per_parameter(recipe: TrainingRecipe) -> int:
    """Return the number of values stored per parameter besides weight and gradient: optimizer states and EMA."""
    return OPTIMIZERS[recipe.optimizer].num_states + (recipe.ema_decay is not None)
