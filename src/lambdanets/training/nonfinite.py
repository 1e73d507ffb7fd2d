"""Diagnosis of NaN and inf: recompute a step and name the operation, layer or parameter where they began."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode


def diagnose_loss(model: nn.Module, images: object, compute_loss: Callable[[], Tensor]) -> str:
    """The cause of a non-finite loss as a clause: a parameter, a buffer, an input image, or an operation.

    compute_loss: recomputes the loss with the same batch, random state, autocast and code path. Operations are
    inspected below autograd, so those inside functional code are seen too. The operation named has finite inputs and a
    non-finite output. No module gets a hook, because layers bypass the fused path of projections that have hooks.
    """
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return f"the parameter {name} is not finite"
    for name, buffer in _buffers_read(model):
        if buffer.isnan().any():  # inf may be meant, as in a mask
            return f"the buffer {name} is NaN"
    if not all(map(_is_finite, _tensors(images))):
        return "an image of the batch is not finite"
    modules = _Modules(model)
    with modules, _Origins(modules) as origins:
        origins.allow_inf(model.buffers())
        loss = compute_loss()
    if _is_finite(loss):
        return "recomputed it was finite, so that no operation can be named"
    origin = origins.of(loss) or "one with an infinite constant"
    return f"the first operation with a non-finite result is {origin}"


def diagnose_gradient(model: nn.Module, compute_loss: Callable[[], Tensor]) -> str:
    """The operation whose backward pass first turns finite gradients into non-finite ones, as a clause.

    compute_loss: as in `diagnose_loss`. The gradients of the model are left as they are.
    """
    modules = _Modules(model)
    with modules:
        loss = compute_loss()
    modules.label(loss)
    found: list[str] = []
    for node, place in modules.places.items():
        node.register_hook(_record_nonfinite(f"{node.name().rpartition('::')[2]} in {place}", found))
    torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    if not found:
        return "the gradients of this micro-batch are finite, so that it is their sum over micro-batches or ranks"
    return f"the first operation whose backward pass has a non-finite result is {found[0]}"


def first_nonfinite_gradient(model: nn.Module) -> str | None:
    """The name of the parameter nearest to the loss with a non-finite gradient, or None."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    if not gradients or torch.nn.utils.get_total_norm(gradients.values()).isfinite():
        return None
    # parameters are listed from input to output; the backward pass reaches the last first
    return next((name for name in reversed(gradients) if not gradients[name].isfinite().all()), None)


class _Modules:
    """Tracks the module being computed, and for each node of the autograd graph the module that created it."""

    def __init__(self, model: nn.Module) -> None:
        self.places: dict[Node, str] = {}  # holds the nodes, as they are compared by identity
        self._names = {module: f"{name} ({type(module).__name__})" for name, module in model.named_modules() if name}
        self._names[model] = "the model itself"
        self._stack = ["the loss"]

    @property
    def innermost(self) -> str:
        return self._stack[-1]

    def __enter__(self) -> "_Modules":
        # global hooks: `layers.projection` looks for hooks of a module
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, inputs: object) -> None:
        self.label(inputs)
        self._stack.append(self._names.get(module, self.innermost))

    def _leave(self, module: nn.Module, inputs: object, outputs: object) -> None:
        self.label(outputs)
        self._stack.pop()

    def label(self, values: object) -> None:
        """Assign the present module to all nodes upstream of these tensors that have none yet."""
        queue = [tensor.grad_fn for tensor in _tensors(values) if tensor.grad_fn is not None]
        while queue:
            node = queue.pop()
            if node not in self.places:
                self.places[node] = self.innermost
                queue += [parent for parent, _ in node.next_functions if parent is not None]


class _Origins(TorchDispatchMode):
    """Tracks which operation produced the NaN and inf in each storage."""

    def __init__(self, modules: _Modules) -> None:
        super().__init__()
        self._modules = modules
        self._origins: dict[int, str | None] = {}  # by storage; None for intended infinities, such as masks

    def of(self, tensor: Tensor) -> str | None:
        """The operation, and its module, that produced the NaN or inf of a tensor."""
        return self._origins.get(_place(tensor))

    def allow_inf(self, tensors: Iterable[Tensor]) -> None:
        """Treat infinities in these tensors as intended."""
        self._origins.update((_place(tensor), None) for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read, written = _split(func, args, kwargs)
        # in-place inputs must be inspected before the call; copy_ does not read its destination
        nonfinite = [t for t in written if not _is_finite(t)] if "copy_" not in func.name() else []
        output = func(*args, **kwargs)
        for tensor in [*_tensors(output), *written]:
            if _is_finite(tensor):
                if all(_place(tensor) != _place(other) for other in (*read, *written)):
                    self._origins.pop(_place(tensor), None)  # the allocator reused a storage
            elif read or written:
                nonfinite += [t for t in read if not _is_finite(t)]
                self._origins[_place(tensor)] = self._trace(func, tensor, nonfinite, (args, kwargs))
        return output

    def _trace(self, func: Any, output: Tensor, nonfinite: list[Tensor], arguments: object) -> str | None:
        name = func.name().partition("::")[2].partition(".")[0]
        here = f"{name} in {self._modules.innermost}"
        if not nonfinite:
            return None if _has_infinite_constant(arguments) and not output.isnan().any() else here
        for tensor in nonfinite:
            # a storage without an origin was written by a kernel that the dispatcher does not see
            origin = self._origins.get(_place(tensor), f"the input of {name} in {self._modules.innermost}")
            if origin is not None:
                return origin
        nan_before = any(tensor.isnan().any() for tensor in nonfinite)
        return here if output.isnan().any() and not nan_before else None


def _split(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that an operation only reads, and those that it writes in place; out= tensors are in neither."""
    read: list[Tensor] = []
    written: list[Tensor] = []
    for number, argument in enumerate(func._schema.arguments):
        value = kwargs.get(argument.name) if argument.kwarg_only else args[number] if number < len(args) else None
        in_place = argument.alias_info is not None and argument.alias_info.is_write
        if not (in_place and argument.is_out):
            (written if in_place else read).extend(_tensors(value))
    return read, written


def _record_nonfinite(place: str, found: list[str]) -> Callable[..., None]:
    def hook(grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]) -> None:
        if not found and not all(map(_is_finite, _tensors(grad_inputs))):
            prefix = "" if all(map(_is_finite, _tensors(grad_outputs))) else "the sum of gradients that reach "
            found.append(prefix + place)

    return hook


def _buffers_read(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All buffers but the running statistics of batch norm in training, which the failed step has overwritten."""
    for prefix, module in model.named_modules():
        if not (isinstance(module, nn.modules.batchnorm._NormBase) and module.training):
            yield from module.named_buffers(prefix, recurse=False)


def _is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all())


def _has_infinite_constant(value: object) -> bool:
    if isinstance(value, float):
        return value in (float("inf"), float("-inf"))
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_infinite_constant, items))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
