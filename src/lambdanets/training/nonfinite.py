"""Finds the module where NaN or inf begin, by a second pass of a failed step."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


def diagnose(model: nn.Module, batch: object, compute_loss: Callable[[], Tensor]) -> str:
    """Return the cause of a non-finite loss or gradient as a clause: a weight, an input image, or a module.

    compute_loss: recomputes the loss with the same batch, random state and autocast. The gradients
    stored in the model are not changed.
    """
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if not parameter.isfinite().all():
            return f"the parameter {name} contains NaN or inf"
    if not all(tensor.isfinite().all() for tensor in _tensors(batch)):
        return "an image of the batch contains NaN or inf"
    names = {module: f"{name or 'the model'} ({type(module).__name__})" for name, module in model.named_modules()}
    outputs: list[str] = []  # modules with a non-finite output, and with a non-finite gradient of their output
    gradients: list[str] = []

    def check_gradient(name: str, gradient: Tensor) -> None:
        if not gradient.isfinite().all():
            gradients.append(name)

    def check_output(module: nn.Module, inputs: object, output: object) -> None:
        for tensor in _tensors(output) if module in names else ():
            if not tensor.isfinite().all():
                outputs.append(names[module])
            if tensor.requires_grad:
                tensor.register_hook(partial(check_gradient, names[module]))

    # inner modules call it before outer ones
    handle = register_module_forward_hook(check_output)
    try:
        loss = compute_loss()
    finally:
        handle.remove()
    if not loss.isfinite():
        return f"the first module with a non-finite output is {outputs[0] if outputs else 'the loss'}"
    torch.autograd.grad(loss, [p for p in parameters.values() if p.requires_grad], allow_unused=True)
    if not gradients:
        return "recomputed, no output or gradient of a module is non-finite; that of a weight, or a sum, may be"
    return f"the first module with a non-finite gradient of its output is {gradients[0]}; what follows it is the cause"


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
