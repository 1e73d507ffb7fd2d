"""Finds the module where NaN or inf begin, by a second pass of a failed step."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


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
    with _Modules(model) as modules:
        loss = compute_loss()
    if not loss.isfinite():
        return f"the first module with a non-finite output is {modules.first or 'the loss'}"
    modules.first = None
    torch.autograd.grad(loss, [p for p in parameters.values() if p.requires_grad], allow_unused=True)
    if modules.first is None:
        return "recomputed, no output or gradient of a module is non-finite; that of a weight, or a sum, may be"
    return f"the first module with a non-finite gradient is {modules.first}"


class _Modules:
    """Watches the outputs of a model's modules and, in the backward pass, their gradients.

    first: the first module in which NaN or inf were found. A gradient's module is the one that
    read the tensor; for a tensor that no module read, it is the one that runs, or the loss.
    """

    def __init__(self, model: nn.Module) -> None:
        self.first: str | None = None
        self._node: Node | None = None  # of the first tensor with such a gradient
        self._names = {m: f"{name} ({type(m).__name__})" for name, m in model.named_modules() if name}
        self._names[model] = "the model itself"
        self._running = ["the loss"]

    def __enter__(self) -> "_Modules":
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, inputs: object) -> None:
        self._running.append(self._names.get(module, self._running[-1]))
        self._watch_gradients(inputs)

    def _after(self, module: nn.Module, inputs: object, outputs: object) -> None:
        name = self._running.pop()
        if not all(tensor.isfinite().all() for tensor in _tensors(outputs)):
            self.first = self.first or name
        self._watch_gradients(outputs)

    def _watch_gradients(self, values: object) -> None:
        for tensor in _tensors(values):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._check, tensor.grad_fn, self._running[-1]))

    def _check(self, node: Node | None, name: str, gradient: Tensor) -> None:
        # hooks of one tensor run in the order of registration: its innermost reader is the last
        if (self.first is None or node is self._node) and not gradient.isfinite().all():
            self.first, self._node = name, node


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
