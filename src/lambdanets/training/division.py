"""How a step's images are divided: over processes, and in parts that fit into memory."""

import copy
import sys
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device, free_memory, has_fast_bfloat16
from lambdanets.errors import InputError
from lambdanets.terminal import say
from lambdanets.training.memory import MemoryProbe, at_a_time, images_that_fit, states_of
from lambdanets.training.processes import Processes, all_reduce_min
from lambdanets.training.recipe import TrainingRecipe

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def with_precision(recipe: AnyRecipe) -> AnyRecipe:
    """The recipe with what "auto" stands for on this machine: bf16-mixed on a GPU that has bfloat16, else 32-true."""
    if recipe.precision != "auto":
        return recipe
    return replace(recipe, precision="bf16-mixed" if has_fast_bfloat16() else "32-true")


def divided(
    recipe: AnyRecipe, probe: MemoryProbe, model: nn.Module, images: int, these: Processes
) -> tuple[AnyRecipe, BatchSlice]:
    """The recipe with the micro_batch that all processes can compute, and this process's share of a step.

    A micro_batch that does not fit is halved until it does, and that is said: by what is predicted on a processor, by a
    probe on a GPU. The gradients of the parts add up, so that a step is the same but for batch norm's statistics, which
    are those of a part.

    images: how many there are to train on. Raises InputError where the fewest images of a part are too many, or a step
    has too few.
    """
    own, least_own = images_of_process(recipe, images, these.world_size)
    wanted = min(own, recipe.micro_batch or own)
    device = best_device()
    # processes on one processor share its memory
    free = free_memory(device) // (these.local_world_size if device.type == "cpu" else 1)
    fitting = _tried(probe, model, wanted, device) if device.type == "cuda" else images_that_fit(probe, wanted, free)
    fitting = all_reduce_min(fitting)
    if fitting < wanted and these.is_rank_zero:
        say(f"{wanted} images at a time do not fit into memory: computing {fitting} at a time", file=sys.stderr)
    # what fits, and not what the parts come to: a run that goes on must come to the same parts
    parts = parts_of_step(own, least_own, fitting, recipe.MIN_MICRO_BATCH)
    return replace(recipe, micro_batch=max(fitting, recipe.MIN_MICRO_BATCH)), BatchSlice(
        these.rank, these.world_size, parts
    )


def images_of_process(recipe: TrainingRecipe, images: int, processes: int) -> tuple[int, int]:
    """How many images of a step the process with the most has, and the one with the fewest.

    Raises InputError for fewer than must be computed at a time.
    """
    labelled, beside = min(recipe.batch_size, images), recipe.pseudo_batch_size
    fewest = labelled // processes + beside // processes
    if fewest < recipe.MIN_MICRO_BATCH:
        raise InputError(
            f"a step must have at least {recipe.MIN_MICRO_BATCH} images for each of {processes} processes, "
            f"got {labelled + beside}; raise batch_size or use fewer processes"
        )
    return -(-labelled // processes) - (-beside // processes), fewest


def parts_of_step(own: int, fewest: int, fitting: int, least_part: int) -> int:
    """In how many parts processes compute a step, so that each part has enough images in the one with the fewest."""
    return max(1, min(-(-own // fitting), fewest // least_part))


def _tried(probe: MemoryProbe, model: nn.Module, images: int, device: torch.device) -> int:
    """So many images, or half, or half of that: what a step runs with, beside what optimizer and averages hold."""
    tried = copy.deepcopy(model).to(device).train()
    own = sum(parameter.numel() * parameter.element_size() for parameter in tried.parameters())
    # the optimizer's states, the average, and the buckets that processes sum gradients in
    held = torch.empty(own * (states_of(probe.recipe) + 1), dtype=torch.uint8, device=device)
    while not _runs(probe, tried, images, device):
        if images <= probe.recipe.MIN_MICRO_BATCH:
            raise InputError(
                f"training {probe.recipe.model} on images of {probe.size} does not fit into the GPU's memory with "
                f"{at_a_time(images)}; choose a smaller model or image_size"
            )
        images = -(-images // 2)
    del held
    return images


def _runs(probe: MemoryProbe, model: nn.Module, images: int, device: torch.device) -> bool:
    """Whether a forward and backward pass has enough memory; what it held is free again afterwards."""
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
