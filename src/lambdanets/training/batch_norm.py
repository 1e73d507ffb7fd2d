"""Batch norms as a recipe wants them."""

import timm.layers
import torch
from torch import nn

from lambdanets.errors import InputError
from lambdanets.training.recipe import TrainingRecipe


def prepare_batch_norm(model: nn.Module, recipe: TrainingRecipe, processes: int = 1) -> nn.Module:
    """Put the recipe's momentum into the model's batch norms.

    Raises InputError for batch norm over several processes without GPUs, which PyTorch does not have.
    """
    if recipe.sync_batch_norm and processes > 1 and not torch.cuda.is_available():
        raise InputError("sync_batch_norm needs a GPU for each process, and PyTorch finds none")
    if recipe.batch_norm_momentum is not None:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = recipe.batch_norm_momentum
    return model


def freeze_batch_norm(model: nn.Module) -> None:
    """Let the model's batch norms keep to their running statistics in training; their weights go on learning."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def synchronized(model: nn.Module, recipe: TrainingRecipe, processes: int) -> nn.Module:
    """The model with batch norms over all processes, where the recipe says so and there are several.

    Not to be run by one process alone any more: each forward pass waits for the others.
    """
    if not recipe.sync_batch_norm or processes == 1:
        return model
    before = dict(model.named_modules())
    # timm's conversion keeps the activations that are part of its norms; torch's drops them
    model = timm.layers.convert_sync_batchnorm(model)
    for name, module in model.named_modules():
        if module is not before[name]:  # the conversion drops hooks, such as those that hide padding
            module._forward_pre_hooks.update(before[name]._forward_pre_hooks)
            module._forward_hooks.update(before[name]._forward_hooks)
    return model
