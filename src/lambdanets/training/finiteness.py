"""Where numbers first stopped being finite."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def first_not_finite(model: nn.Module, *inputs: object) -> str:
    """A clause on what first is not finite as a model computes: a parameter, the images, or a layer's output.

    Runs the model again on its inputs, images first, in the mode it is in.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the parameter {name} is not finite any more"
    if any(not tensor.isfinite().all() for tensor in _tensors(inputs)):
        return "an image of the batch is not finite"
    found: list[str] = []

    def look(name: str, output: object) -> None:
        if not found and any(not tensor.isfinite().all() for tensor in _tensors(output)):
            found.append(name)

    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: look(name, output))
        for name, module in model.named_modules()
        if name and not any(True for _ in module.children())
    ]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"the first layer whose output is not finite is {found[0]}"
    return "every layer's output is finite, so it is the loss itself"


def first_gradient_not_finite(model: nn.Module) -> str | None:
    """The parameter nearest to the loss whose gradient is not finite, or None."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    if not gradients or torch.nn.utils.get_total_norm(gradients.values()).isfinite():
        return None
    # parameters are listed from the input on, so that the last is the first the backward pass reaches
    return next((name for name in reversed(gradients) if not gradients[name].isfinite().all()), None)


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple | dict):
        for item in output.values() if isinstance(output, dict) else output:
            yield from _tensors(item)
