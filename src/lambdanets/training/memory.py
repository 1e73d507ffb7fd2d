"""Estimates the memory of a training step, and the largest micro-batch that fits."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.device import best_device, free_memory
from lambdanets.errors import InputError, one_line
from lambdanets.training.recipe import TrainingRecipe

_cache: dict[str, tuple[int, int]] = {}  # results of training_memory by the key of the probe


@dataclasses.dataclass(frozen=True)
class MemoryProbe(ABC):
    """A recipe's forward pass on synthetic images, to estimate the memory of a step."""

    recipe: TrainingRecipe

    @property
    def key(self) -> str:
        """Cache key: equal for probes that need the same memory, whatever the data paths and the seed."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        recipe = dataclasses.asdict(fields.pop("recipe"))
        for name in (*self.recipe.PATHS, "seed"):
            del recipe[name]
        return repr((type(self), fields, recipe))

    @abstractmethod
    def build(self) -> nn.Module:
        """Build the model with random weights."""

    @abstractmethod
    def loss(self, model: nn.Module, images: int, device: torch.device) -> Tensor:
        """The loss of a synthetic batch of `images` on a device, which may be the meta device."""

    @property
    @abstractmethod
    def size(self) -> str:
        """The image size, for messages."""


def largest_micro_batch(probe: MemoryProbe, wanted: int, free_bytes: int | None = None) -> int:
    """The wanted micro-batch, halved until it fits.

    free_bytes: free memory; that of the device by default. Raises InputError if not even the recipe's smallest
    micro-batch fits, and if the model cannot take images of the recipe's size.
    """
    free = free_memory(best_device()) if free_bytes is None else free_bytes
    try:
        fixed, per_image = training_memory(probe)
    except InputError:
        raise
    except Exception as error:  # models raise anything for a size that they cannot take
        raise InputError(f"{probe.recipe.model} cannot take images of {probe.size}: {one_line(error)}") from error
    images, smallest = wanted, probe.recipe.MIN_MICRO_BATCH
    while images > smallest and fixed + per_image * images > free:
        images = -(-images // 2)
    if fixed + per_image * images <= free:
        return images
    raise InputError(
        f"training {probe.recipe.model} on images of {probe.size} with a micro-batch of {smallest} needs about "
        f"{(fixed + smallest * per_image) / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; choose a smaller "
        "model or image_size"
    )


def training_memory(probe: MemoryProbe) -> tuple[int, int]:
    """Memory of a training step in bytes: weights, gradients and optimizer states; and activations per image.

    The step runs on the meta device, and the tensors that autograd saves for the backward pass are added up. This takes
    seconds for a large model, so results are cached.
    """
    if probe.key not in _cache:
        _cache[probe.key] = _count(probe)
    return _cache[probe.key]


def _count(probe: MemoryProbe) -> tuple[int, int]:
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
        activations //= 2  # all but a few statistics are in half precision
    return sum(parameters.values()) * (2 + states_per_parameter(probe.recipe)), activations // 2


def states_per_parameter(recipe: TrainingRecipe) -> int:
    """Values kept per parameter in addition to weight and gradient: optimizer states and EMA."""
    return (1 if recipe.optimizer == "sgd" else 2) + (recipe.ema_decay is not None)
