"""Says before a run starts how many images at a time fit into memory with the model."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.device import best_device, free_memory
from lambdanets.errors import InputError, one_line
from lambdanets.training.recipe import TrainingRecipe

_counted: dict[str, tuple[int, int]] = {}  # what training_memory returned, by the probe's key


@dataclasses.dataclass(frozen=True)
class MemoryProbe(ABC):
    """A recipe's forward pass on made-up images, to see what a step takes."""

    recipe: TrainingRecipe

    @property
    def key(self) -> str:
        """The same for probes that need the same memory: not of the places of data and the seed."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        recipe = dataclasses.asdict(fields.pop("recipe"))
        for name in (*self.recipe.PLACES, "seed"):
            del recipe[name]
        return repr((type(self), fields, recipe))

    @abstractmethod
    def build(self) -> nn.Module:
        """A fresh model."""

    @abstractmethod
    def loss(self, model: nn.Module, images: int, device: torch.device) -> Tensor:
        """A loss of so many images on a device, which may be the meta device."""

    @property
    @abstractmethod
    def size(self) -> str:
        """Of the images, in words."""


def images_that_fit(probe: MemoryProbe, wanted: int, free_bytes: int | None = None) -> int:
    """How many of the wanted images can be computed at a time: all, or half, or half of that, and so on.

    free_bytes: of memory; by default those of the device. Raises InputError where not even as many fit as must be
    computed at a time, and where the model cannot take images of the recipe's size.
    """
    free = free_memory(best_device()) if free_bytes is None else free_bytes
    try:
        fixed, per_image = training_memory(probe)
    except InputError:
        raise
    except Exception as error:  # whatever a model raises at a size it cannot take
        raise InputError(f"{probe.recipe.model} cannot take images of {probe.size}: {one_line(error)}") from error
    images, least = wanted, probe.recipe.MIN_MICRO_BATCH
    while images > least and fixed + per_image * images > free:
        images = -(-images // 2)
    if fixed + per_image * images <= free:
        return images
    raise InputError(
        f"training {probe.recipe.model} on images of {probe.size} with {at_a_time(least)} needs about "
        f"{(fixed + least * per_image) / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; choose a smaller model "
        "or image_size"
    )


def at_a_time(images: int) -> str:
    """So many images, in words."""
    return f"{'one image' if images == 1 else 'two images' if images == 2 else f'{images} images'} at a time"


def training_memory(probe: MemoryProbe) -> tuple[int, int]:
    """Bytes that a training step holds: those of weights, gradients and optimizer, and those of each image.

    Counted, not measured: the step runs on the meta device, where tensors have shapes and no content, and what
    autograd would keep for the backward pass is added up. That takes seconds for a large model, so what was counted
    serves further seeds of a recipe in this process.
    """
    if probe.key not in _counted:
        _counted[probe.key] = _count(probe)
    return _counted[probe.key]


def _count(probe: MemoryProbe) -> tuple[int, int]:
    meta = torch.device("meta")
    with meta:
        model = probe.build()
    own = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        probe.loss(model.train(), 2, meta)
    activations = sum(
        storage.nbytes() for key, storage in kept.items() if key not in own and storage.device.type == "meta"
    )
    if probe.recipe.precision in ("bf16-mixed", "16-mixed"):
        activations //= 2  # all but sums, norms' statistics and the like
    return sum(own.values()) * (2 + states_of(probe.recipe)), activations // 2


def states_of(recipe: TrainingRecipe) -> int:
    """Numbers kept for each parameter beside itself and its gradient: the optimizer's, and the average."""
    return (1 if recipe.optimizer == "sgd" else 2) + (recipe.ema_decay is not None)
