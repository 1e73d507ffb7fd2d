"""Divides the batch of a step over ranks and into micro-batches that fit into memory."""

import copy
import sys
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lambdanets.data.batches import Batch
from lambdanets.data.order import BatchSlice
from lambdanets.device import free_memory, resolve_device
from lambdanets.errors import InputError, is_out_of_memory, one_line
from lambdanets.terminal import echo, plural
from lambdanets.training.distributed import World, all_gather_lists
from lambdanets.training.task import Task


class Trial:
    """Training steps on copies of the task's largest example and of its model, which do not change it.

    state_bytes: memory of gradients, optimizer states and EMA. smallest: the smallest micro-batch: one image, or two if
    batch norm needs several values per channel.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.recipe, self.device = task.recipe, device
        self._batches = task.training_batches(BatchSlice())
        self._example = task.largest_example(self._batches)
        self._task = copy.copy(task)
        self._task.model = copy.deepcopy(task.model).to(device).train()
        self._parameters = list(self._task.model.parameters())
        num_states = (1 if self.recipe.optimizer == "sgd" else 2) + (self.recipe.ema_decay is not None)
        self.state_bytes = (1 + num_states) * sum(parameter.nbytes for parameter in self._parameters)
        self.smallest = 1 if self._task.num_images(self._batch(1)) else 2

    def _batch(self, size: int) -> Any:
        images, targets = self._batches.collate(*([each] * size for each in self._example))
        return move_data_to_device(Batch(images, targets, torch.arange(size), [], size), self.device)

    def step(self, batch_size: int, backward: bool = True) -> None:
        """Compute the loss of a batch and its gradients, and free them.

        Raises InputError if the model cannot be trained on the images.
        """
        batch = self._batch(batch_size)
        autocast = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(self.recipe.precision)
        try:
            with torch.autocast(self.device.type, autocast, enabled=autocast is not None):
                loss = self._task.losses(batch)["loss"]
            if backward:
                loss.backward()
                loss.item()  # waits for the GPU
        except Exception as error:  # models raise errors of any type for an unsupported size
            if isinstance(error, InputError) or is_out_of_memory(error):
                raise
            reason = f"{self.recipe.model} cannot be trained on these images: {one_line(error)}"
            raise InputError(reason) from error
        finally:
            for parameter in self._parameters:
                parameter.grad = None

    def fits(self, micro_batch: int, free: int) -> bool:
        """Whether a step with a micro-batch fits into memory, of which a CPU has `free` bytes.

        On a GPU it is tried. On a CPU the system would kill the process, so bytes are counted.
        """
        if self.device.type == "cpu":
            return self.state_bytes + self.saved_bytes * micro_batch / self.smallest <= free
        reserved = None
        try:
            reserved = torch.empty(self.state_bytes, dtype=torch.uint8, device=self.device)
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
    def saved_bytes(self) -> int:
        """Bytes of the tensors that autograd saves for the smallest micro-batch, without the parameters."""
        saved: set[torch.UntypedStorage] = set()

        def save(tensor: Tensor) -> Tensor:
            saved.add(tensor.untyped_storage())
            return tensor

        with saved_tensors_hooks(save, lambda tensor: tensor):
            self.step(self.smallest, backward=False)
        saved -= {parameter.untyped_storage() for parameter in self._parameters}
        return sum(storage.nbytes() for storage in saved)


def choose_micro_batch(task: Task, world: World) -> BatchSlice:
    """Set a micro_batch in the task's recipe that fits into memory on all ranks; return this rank's slice.

    A micro_batch that does not fit is halved until it fits, with a message. Gradients are
    accumulated, so only the statistics of batch norm depend on the micro-batch.

    Raises InputError if the smallest micro-batch does not fit, or if the model cannot be trained on
    the images. Whether a step has enough images for all ranks, `Order` checks.
    """
    device, ranks, recipe = resolve_device(), world.world_size, task.recipe
    trial = Trial(task, device)
    smallest = trial.smallest
    sizes = recipe.step_sizes(len(task.training))
    fewest, most = sum(size // ranks for size in sizes), sum(-(-size // ranks) for size in sizes)
    if (recipe.micro_batch or smallest) < smallest:
        raise InputError(f"micro_batch must be at least {smallest}, as batch norm needs, got {recipe.micro_batch}")
    requested = min(most, recipe.micro_batch or most)
    # ranks on one CPU share its memory
    free = free_memory(device) // (world.local_world_size if device.type == "cpu" else 1)
    largest = min(all_gather_lists([largest_micro_batch(trial, requested, free)]))
    if largest < requested and world.rank == 0:
        note = f"a micro-batch of {plural(requested, 'image')} does not fit into memory: using {largest}"
        echo(note, file=sys.stderr)
    # no micro-batch has fewer images than the smallest; if possible, none has more than the largest
    steps = max(1, min(-(-most // largest), fewest // smallest))
    # Store the maximum that fits, not the actual size: a resumed run then has the same steps.
    task.recipe = replace(recipe, micro_batch=largest)
    return BatchSlice(world.rank, ranks, steps, smallest)


def largest_micro_batch(trial: Trial, micro_batch: int, free: int) -> int:
    """Return a micro-batch, halved until it fits. free: memory in bytes."""
    while not trial.fits(micro_batch, free):
        if micro_batch <= trial.smallest:
            raise InputError(
                f"training {trial.recipe.model} with a micro-batch of {micro_batch} needs more than the "
                f"{free / 2**30:.1f} GiB of memory that are free; choose a smaller model or smaller images"
            )
        micro_batch = -(-micro_batch // 2)
    return micro_batch
