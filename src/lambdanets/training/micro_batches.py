"""Divides the batch of a step over ranks and into micro-batches that fit into memory."""

import copy
import sys
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device, free_memory, has_fast_bfloat16
from lambdanets.errors import InputError, is_out_of_memory
from lambdanets.terminal import echo
from lambdanets.training.distributed import World, all_reduce_min
from lambdanets.training.memory import MemoryProbe, largest_micro_batch, states_per_parameter
from lambdanets.training.recipe import TrainingRecipe

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def resolve_precision(recipe: AnyRecipe) -> AnyRecipe:
    """Resolve precision="auto": bf16-mixed on a GPU that supports bfloat16, otherwise 32-true."""
    if recipe.precision != "auto":
        return recipe
    return replace(recipe, precision="bf16-mixed" if has_fast_bfloat16() else "32-true")


def with_micro_batch(
    recipe: AnyRecipe, probe: MemoryProbe, model: nn.Module, num_images: int, world: World
) -> tuple[AnyRecipe, BatchSlice]:
    """Return the recipe with a micro_batch that fits into memory on all ranks, and the batch slice of this rank.

    A micro_batch that does not fit is halved until it fits, with a message. On a CPU the memory is estimated; on a GPU
    a step is run. Gradients are accumulated, so only the statistics of batch norm depend on the micro-batch.

    num_images: number of training images.

    Raises InputError if the smallest micro-batch does not fit, or if the batch is too small for the world size.
    """
    max_images, min_images = images_per_rank(recipe, num_images, world.world_size)
    requested = min(max_images, recipe.micro_batch or max_images)
    device = best_device()
    # ranks on one CPU share its memory
    free = free_memory(device) // (world.local_world_size if device.type == "cpu" else 1)
    if device.type == "cuda":
        max_micro_batch = _largest_micro_batch_on_gpu(probe, model, requested, device)
    else:
        max_micro_batch = largest_micro_batch(probe, requested, free)
    max_micro_batch = all_reduce_min(max_micro_batch)
    if max_micro_batch < requested and world.is_rank_zero:
        echo(f"a micro-batch of {requested} images does not fit into memory: using {max_micro_batch}", file=sys.stderr)
    steps = accumulation_steps(max_images, min_images, max_micro_batch, recipe.MIN_MICRO_BATCH)
    # Store the maximum that fits, not the actual size: a resumed run then gets the same accumulation steps.
    micro_batch = max(max_micro_batch, recipe.MIN_MICRO_BATCH)
    return replace(recipe, micro_batch=micro_batch), BatchSlice(world.rank, world.world_size, steps)


def images_per_rank(recipe: TrainingRecipe, num_images: int, world_size: int) -> tuple[int, int]:
    """Return the number of images per step on the rank with the most and on the rank with the fewest images.

    Raises InputError if the minimum is less than the smallest allowed micro-batch.
    """
    sizes = recipe.step_sizes(num_images)
    min_images = sum(size // world_size for size in sizes)
    if min_images < recipe.MIN_MICRO_BATCH:
        raise InputError(
            f"batch_size must give at least {recipe.MIN_MICRO_BATCH} images to each of {world_size} ranks, "
            f"got {sum(sizes)} in total; increase batch_size or reduce the world size"
        )
    return sum(-(-size // world_size) for size in sizes), min_images


def accumulation_steps(max_images: int, min_images: int, max_micro_batch: int, min_micro_batch: int) -> int:
    """Return the number of micro-batches per step.

    max_images, min_images: images per step on the ranks with the most and the fewest images. No micro-batch has fewer
    than min_micro_batch images; if possible, none has more than max_micro_batch.
    """
    return max(1, min(-(-max_images // max_micro_batch), min_images // min_micro_batch))


def _largest_micro_batch_on_gpu(probe: MemoryProbe, model: nn.Module, micro_batch: int, device: torch.device) -> int:
    """Halve the micro-batch until it fits into GPU memory together with optimizer states and EMA, and return it."""
    parameter_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    # optimizer states, EMA, and the buckets of the gradient all-reduce
    reserved_bytes = parameter_bytes * (states_per_parameter(probe.recipe) + 1)
    try:
        model = copy.deepcopy(model).to(device).train()
        reserved = torch.empty(reserved_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"optimizer states and EMA of {probe.recipe.model} need {reserved_bytes / 2**30:.1f} GiB and do not "
            "fit into the GPU's memory; choose a smaller model"
        ) from error
    while not _fits_on_gpu(probe, model, micro_batch, device):
        if micro_batch <= probe.recipe.MIN_MICRO_BATCH:
            raise InputError(
                f"training {probe.recipe.model} on images of {probe.size} with a micro-batch of {micro_batch} does not "
                "fit into the GPU's memory; choose a smaller model or image_size"
            )
        micro_batch = -(-micro_batch // 2)
    del reserved
    return micro_batch


def _fits_on_gpu(probe: MemoryProbe, model: nn.Module, micro_batch: int, device: torch.device) -> bool:
    """Whether a forward and backward pass fits into GPU memory. The memory is freed afterwards."""
    autocast = AUTOCAST.get(probe.recipe.precision)
    try:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            loss = probe.loss(model, micro_batch, device)
        loss.backward()
    except RuntimeError as error:
        if is_out_of_memory(error) or "unable to find an engine" in str(error):  # cuDNN's error with little memory
            return False
        raise
    finally:
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return True
