"""How a step's images are divided: over processes, and in parts that fit into memory."""

import copy
import sys
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from lambdanets.device import best_device, free_memory, has_fast_bfloat16
from lambdanets.errors import InputError
from lambdanets.training.data.order import Share
from lambdanets.training.memory import images_that_fit, states_of
from lambdanets.training.processes import Processes, least
from lambdanets.training.recipe import Recipe

AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def with_precision(recipe: Recipe) -> Recipe:
    """The recipe with what "auto" stands for on this machine: bf16-mixed on a GPU that has bfloat16, else 32-true."""
    if recipe.precision != "auto":
        return recipe
    return replace(recipe, precision="bf16-mixed" if has_fast_bfloat16() else "32-true")


def divided(recipe: Recipe, model: nn.Module, classes: int, images: int, these: Processes) -> tuple[Recipe, Share]:
    """The recipe with the micro_batch that all processes can compute, and this process's share of a step.

    A micro_batch that does not fit is halved until it does, and that is said: by what is predicted on a processor, by a
    trial on a GPU. The gradients of the parts add up, so that a step is the same but for batch norm's statistics, which
    are those of a part.

    images: how many there are to train on. Raises InputError where two images a part are too many, or too few.
    """
    labelled = min(recipe.batch_size, images)
    step = labelled + recipe.pseudo_batch
    least_own = labelled // these.count + recipe.pseudo_batch // these.count  # of the process with the fewest
    if least_own < 2:
        raise InputError(
            f"a step must have at least 2 images for each of {these.count} processes, got {step}; "
            "raise batch_size or use fewer processes"
        )
    own = -(-labelled // these.count) - (-recipe.pseudo_batch // these.count)  # of the process with the most
    wanted = min(own, recipe.micro_batch or own)
    device = best_device()
    # processes on one processor share its memory
    free = free_memory(device) // (these.local_count if device.type == "cpu" else 1)
    if device.type == "cuda":
        fitting = _tried(recipe, model, wanted, device)
    else:
        fitting = images_that_fit(recipe, classes, wanted, free)
    fitting = least(fitting)
    if fitting < wanted and these.first:
        print(f"{wanted} images at a time do not fit into memory: computing {fitting} at a time", file=sys.stderr)
    # every part needs two images, also where the processes' numbers differ by one
    parts = max(1, min(-(-own // fitting), least_own // 2))
    return replace(recipe, micro_batch=max(2, -(-own // parts))), Share(these.rank, these.count, parts)


def _tried(recipe: Recipe, model: nn.Module, images: int, device: torch.device) -> int:
    """So many images, or half, or half of that: what a step runs with, beside what optimizer and averages hold."""
    trial = copy.deepcopy(model).to(device).train()
    own = sum(parameter.numel() * parameter.element_size() for parameter in trial.parameters())
    # the optimizer's states, the average, and the buckets that processes sum gradients in
    held = torch.empty(own * (states_of(recipe) + 1), dtype=torch.uint8, device=device)
    while not _runs(recipe, trial, images, device):
        if images <= 2:
            raise InputError(
                f"training {recipe.model} at image_size {recipe.image_size} does not fit into the GPU's memory with "
                "two images at a time; choose a smaller model or image_size"
            )
        images = -(-images // 2)
    del held
    return images


def _runs(recipe: Recipe, trial: nn.Module, images: int, device: torch.device) -> bool:
    """Whether a forward and backward pass has enough memory; what it held is free again afterwards."""
    autocast = AUTOCAST.get(recipe.precision)
    try:
        batch = torch.randn(images, recipe.channels, recipe.image_size, recipe.image_size, device=device)
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            logits = trial(batch)
        F.cross_entropy(logits.float(), torch.zeros(images, dtype=torch.long, device=device)).backward()
    except torch.OutOfMemoryError:
        return False
    finally:
        trial.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return True
