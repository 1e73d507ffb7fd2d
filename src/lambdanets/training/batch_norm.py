"""Batch norm in training: the recipe's settings, and running statistics over whole steps."""

import timm.layers
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lambdanets.training.recipe import TrainingRecipe


class StepStatistics:
    """The running statistics of one step, which has several micro-batches or ranks.

    PyTorch updates running statistics in each forward pass, so they would depend on the number of micro-batches, and on
    the rank. Here each micro-batch starts from the statistics before the step, and the step ends with the mean of the
    results over all its images, on all ranks. This equals one update with the mean of the batch statistics.

    Layers that are in eval mode when the step starts keep their statistics.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [buffer for norm in _norms(model) if norm.training for buffer in norm.buffers()]
        self._before = self._read()
        self._sum = torch.zeros_like(self._before)
        self._images = 0

    def add(self, num_images: int) -> None:
        """Add the statistics after the forward pass of a micro-batch, which has no images if there was none."""
        self._sum += num_images * self._read()
        self._images += num_images
        self._write(self._before)

    def finish(self) -> None:
        """Set the statistics to those of the step. Waits for the other ranks."""
        sums = torch.cat([self._sum, self._sum.new_tensor([self._images])])
        if dist.is_initialized():
            dist.all_reduce(sums)
        if sums[-1]:
            self._write(sums[:-1] / sums[-1])

    def _read(self) -> Tensor:
        values = [buffer.detach().flatten().double() for buffer in self._buffers]
        return torch.cat(values) if values else torch.zeros(0)

    def _write(self, values: Tensor) -> None:
        parts = values.split([buffer.numel() for buffer in self._buffers])
        for buffer, part in zip(self._buffers, parts, strict=True):
            buffer.detach().copy_(part.view_as(buffer))


def _norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def freeze_batch_norm(model: nn.Module) -> None:
    """Put all batch norm layers into eval mode. Their affine parameters are still trained."""
    for norm in _norms(model):
        norm.eval()


def prepare_batch_norm(model: nn.Module, recipe: TrainingRecipe, world_size: int = 1) -> nn.Module:
    """Set the recipe's momentum, and convert to synchronized batch norm if it has that and there are several ranks.

    After the conversion, a forward pass on one rank waits for the other ranks.
    """
    if recipe.batch_norm_momentum is not None:
        for norm in _norms(model):
            norm.momentum = recipe.batch_norm_momentum
    if not recipe.sync_batch_norm or world_size == 1:
        return model
    original_modules = dict(model.named_modules())
    # timm's conversion keeps the activations of its norm-act layers; PyTorch's removes them
    model = timm.layers.convert_sync_batchnorm(model)
    for name, module in model.named_modules():
        if module is not original_modules[name]:
            # the conversion removes hooks, such as those that mask padding
            module._forward_pre_hooks.update(original_modules[name]._forward_pre_hooks)
            module._forward_hooks.update(original_modules[name]._forward_hooks)
    return model
