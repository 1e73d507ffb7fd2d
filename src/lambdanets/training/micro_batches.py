"""Divides a step over ranks and into micro-batches that fit into memory."""

import copy
import sys
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device, free_memory, has_fast_bfloat16
from lambdanets.errors import InputError
from lambdanets.terminal import echo
from lambdanets.training.distributed import World, all_reduce_min
from lambdanets.training.memory import MemoryProbe, largest_micro_batch, states_per_parameter
from lambdanets.training.recipe import TrainingRecipe

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def with_precision(recipe: AnyRecipe) -> AnyRecipe:
    """Resolve precision="auto": bf16-mixed on a GPU that supports bfloat16, else 32-true."""
    if recipe.precision != "auto":
        return recipe
    return replace(recipe, precision="bf16-mixed" if has_fast_bfloat16() else "32-true")


def with_micro_batch(
    recipe: AnyRecipe, probe: MemoryProbe, model: nn.Module, images: int, world: World
) -> tuple[AnyRecipe, BatchSlice]:
    """The recipe with a micro_batch that fits into memory on all ranks, and the batch slice of this rank.

    A micro_batch that does not fit is halved until it does, with a message: by an estimate on a CPU, by trial on a GPU.
    Gradients are accumulated, so the step stays the same but for the statistics of batch norm, which are those of a
    micro-batch.

    images: size of the training set. Raises InputError if not even the smallest micro-batch fits, or if the batch is
    too small for the world size.
    """
    largest, smallest = images_per_rank(recipe, images, world.world_size)
    wanted = min(largest, recipe.micro_batch or largest)
    device = best_device()
    # ranks on one CPU share its memory
    free = free_memory(device) // (world.local_world_size if device.type == "cpu" else 1)
    on_gpu = device.type == "cuda"
    fitting = _largest_that_runs(probe, model, wanted, device) if on_gpu else largest_micro_batch(probe, wanted, free)
    fitting = all_reduce_min(fitting)
    if fitting < wanted and world.is_rank_zero:
        echo(f"a micro-batch of {wanted} images does not fit into memory: using {fitting}", file=sys.stderr)
    steps = accumulation_steps(largest, smallest, fitting, recipe.MIN_MICRO_BATCH)
    # micro_batch is what fits, not the size of a micro-batch, so that a resumed run gets the same accumulation steps
    micro_batch = max(fitting, recipe.MIN_MICRO_BATCH)
    return replace(recipe, micro_batch=micro_batch), BatchSlice(world.rank, world.world_size, steps)


def images_per_rank(recipe: TrainingRecipe, images: int, world_size: int) -> tuple[int, int]:
    """The largest and the smallest number of images per step on a rank.

    Raises InputError if the smallest is below the smallest micro-batch.
    """
    labeled, pseudo = min(recipe.batch_size, images), recipe.pseudo_batch_size
    smallest = labeled // world_size + pseudo // world_size
    if smallest < recipe.MIN_MICRO_BATCH:
        raise InputError(
            f"batch_size must give at least {recipe.MIN_MICRO_BATCH} images to each of {world_size} ranks, "
            f"got {labeled + pseudo} in total; increase batch_size or reduce the world size"
        )
    return -(-labeled // world_size) - (-pseudo // world_size), smallest


def accumulation_steps(largest: int, smallest: int, fitting: int, min_micro_batch: int) -> int:
    """Micro-batches per step such that each fits into memory and none is below min_micro_batch on any rank."""
    return max(1, min(-(-largest // fitting), smallest // min_micro_batch))


def _largest_that_runs(probe: MemoryProbe, model: nn.Module, images: int, device: torch.device) -> int:
    """The largest of `images`, images / 2, ... that fits into GPU memory with optimizer states and EMA."""
    trial = copy.deepcopy(model).to(device).train()
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in trial.parameters())
    # optimizer states, EMA, and the buckets of the gradient all-reduce
    reserved = torch.empty(parameters * (states_per_parameter(probe.recipe) + 1), dtype=torch.uint8, device=device)
    while not _runs(probe, trial, images, device):
        if images <= probe.recipe.MIN_MICRO_BATCH:
            raise InputError(
                f"training {probe.recipe.model} on images of {probe.size} with a micro-batch of {images} does not fit "
                "into the GPU's memory; choose a smaller model or image_size"
            )
        images = -(-images // 2)
    del reserved
    return images


def _runs(probe: MemoryProbe, model: nn.Module, images: int, device: torch.device) -> bool:
    """Whether a forward and backward pass fits into the GPU's memory, which is freed afterwards."""
    autocast = AUTOCAST.get(probe.recipe.precision)
    try:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            loss = probe.loss(model, images, device)
        loss.backward()
    except torch.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return True
