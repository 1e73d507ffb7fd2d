"""Divides the batch of a step over ranks and into micro-batches that fit into memory."""

import copy
import sys
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, UntypedStorage

from lambdanets.data.batches import Sample
from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device, free_memory
from lambdanets.errors import InputError, is_out_of_memory, one_line
from lambdanets.terminal import echo
from lambdanets.training.distributed import World, all_gather_lists
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.task import Task

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class Trial:
    """Training steps on copies of the task's largest example, with a copy of its model.

    They change neither the task nor the random state.
    """

    def __init__(self, task: Task, recipe: TrainingRecipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self._batches = task.training_batches(recipe, BatchSlice())
        self._example = task.largest_example(self._batches)
        self._task = copy.copy(task)
        self._task.model = copy.deepcopy(task.model).to(device).train()
        self._parameters = list(self._task.model.parameters())
        weight_bytes = sum(parameter.nbytes for parameter in self._parameters)
        num_states = (1 if recipe.optimizer == "sgd" else 2) + (recipe.ema_decay is not None)
        self.fixed_bytes = (2 + num_states) * weight_bytes  # weights, gradients, optimizer states and EMA
        self._reserved_bytes = (1 + num_states) * weight_bytes  # in addition to a step on a GPU
        # the smallest micro-batch: one image, or two if batch norm needs several values per channel
        self.smallest = 1 if self._task.num_images(self._batch(1)) else 2

    def _batch(self, size: int) -> Any:
        samples = [Sample(self._example, 0, "", size)] * size
        return move_data_to_device(self._batches.collate(samples), self.device)

    def step(self, batch_size: int, backward: bool = True) -> None:
        """Compute the loss of a batch and its gradients, and free them.

        Raises InputError if the model cannot be trained on the images.
        """
        batch = self._batch(batch_size)
        autocast = AUTOCAST.get(self.recipe.precision)
        try:
            with (
                torch.random.fork_rng([self.device] if self.device.type == "cuda" else []),
                torch.autocast(self.device.type, autocast, enabled=autocast is not None),
            ):
                loss = self._task.losses(batch, self.recipe)["loss"]
            if backward:
                loss.backward()
        except Exception as error:  # models raise errors of any type for an unsupported size
            if isinstance(error, InputError) or is_out_of_memory(error):
                raise
            raise InputError(f"{self.recipe.model} cannot be trained on these images: {one_line(error)}") from error
        finally:
            for parameter in self._parameters:
                parameter.grad = None

    def fits(self, micro_batch: int, free: int) -> bool:
        """Whether a step with a micro-batch fits into memory: on a CPU by counting, on a GPU by trying."""
        if self.device.type != "cuda":
            return self.fixed_bytes + self.bytes_per_image * micro_batch <= free
        reserved = None
        try:
            reserved = torch.empty(self._reserved_bytes, dtype=torch.uint8, device=self.device)
            self.step(micro_batch)
            fits = True
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        del reserved
        torch.cuda.empty_cache()  # here, because the exception had references to tensors
        return fits

    @cached_property
    def bytes_per_image(self) -> float:
        """The bytes per image that autograd saves for the gradients, in the smallest micro-batch."""
        weights = {parameter.untyped_storage()._cdata for parameter in self._parameters}
        saved: dict[int, UntypedStorage] = {}

        def save(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                saved[storage._cdata] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            self.step(self.smallest, backward=False)
        return sum(storage.nbytes() for storage in saved.values()) / self.smallest


def with_micro_batch(task: Task, recipe: AnyRecipe, world: World) -> tuple[AnyRecipe, BatchSlice]:
    """Return the recipe with a micro_batch that fits into memory on all ranks, and the batch slice of this rank.

    A micro_batch that does not fit is halved until it fits, with a message. On a CPU the tensors that autograd saves
    for the smallest micro-batch are counted; on a GPU steps are run. Gradients are accumulated, so only the statistics
    of batch norm depend on the micro-batch.

    Raises InputError if the smallest micro-batch does not fit, if the model cannot be trained on the images, or if the
    batch is too small for the world size.
    """
    device = best_device()
    trial = Trial(task, recipe, device)
    smallest = trial.smallest
    max_images, min_images = images_per_rank(recipe, len(task.training), world.world_size, smallest)
    requested = min(max_images, recipe.micro_batch or max_images)
    if requested < smallest:
        raise InputError(f"micro_batch must be at least {smallest}, as batch norm needs, got {requested}")
    # ranks on one CPU share its memory
    free = free_memory(device) // (world.local_world_size if device.type == "cpu" else 1)
    largest = min(all_gather_lists([largest_micro_batch(trial, requested, free)]))
    if largest < requested and world.is_rank_zero:
        echo(f"a micro-batch of {requested} images does not fit into memory: using {largest}", file=sys.stderr)
    steps = accumulation_steps(max_images, min_images, largest, smallest)
    # Store the maximum that fits, not the actual size: a resumed run then gets the same accumulation steps.
    return replace(recipe, micro_batch=largest), BatchSlice(world.rank, world.world_size, steps, smallest)


def images_per_rank(recipe: TrainingRecipe, num_images: int, world_size: int, smallest: int) -> tuple[int, int]:
    """Return the number of images per step on the rank with the most and on the rank with the fewest images.

    Raises InputError if the minimum is less than the smallest micro-batch.
    """
    sizes = recipe.step_sizes(num_images)
    min_images = sum(size // world_size for size in sizes)
    if min_images < smallest:
        raise InputError(
            f"batch_size must give at least {smallest} images to each of {world_size} ranks, "
            f"got {sum(sizes)} in total; increase batch_size or reduce the world size"
        )
    return sum(-(-size // world_size) for size in sizes), min_images


def accumulation_steps(max_images: int, min_images: int, max_micro_batch: int, min_micro_batch: int) -> int:
    """Return the number of micro-batches per step.

    max_images, min_images: images per step on the ranks with the most and the fewest images. No micro-batch has fewer
    than min_micro_batch images; if possible, none has more than max_micro_batch.
    """
    return max(1, min(-(-max_images // max_micro_batch), min_images // min_micro_batch))


def largest_micro_batch(trial: Trial, requested: int, free: int) -> int:
    """Return the requested micro-batch, halved until it fits: on a CPU into `free` bytes, on a GPU into its memory."""
    micro_batch = requested
    while not trial.fits(micro_batch, free):
        if micro_batch <= trial.smallest:
            raise InputError(
                f"training {trial.recipe.model} with a micro-batch of {micro_batch} needs more than the "
                f"{free / 2**30:.1f} GiB of memory that are free; choose a smaller model or smaller images"
            )
        micro_batch = -(-micro_batch // 2)
    return micro_batch
