"""Diagnosis of NaN and inf: recomputes a step and names the operation, layer or parameter that they come from."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode


def diagnose_loss(model: nn.Module, images: object, compute_loss: Callable[[], Tensor]) -> str:
    """Return the cause of a non-finite loss as a clause: a parameter, a buffer, an input image, or an operation.

    The operation is the first one with finite inputs and a non-finite output. Operations are inspected below autograd,
    so those inside functional code are found too.

    compute_loss: recomputes the loss with the same batch, random state and autocast.
    """
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return f"the parameter {name} contains NaN or inf"
    for name, buffer in _buffers_to_check(model):
        if buffer.isnan().any():  # inf may be intended, as in a mask
            return f"the buffer {name} contains NaN"
    if not all(map(_is_finite, _tensors(images))):
        return "an image of the batch contains NaN or inf"
    modules = _Modules(model)
    with modules, _Origins(modules) as origins:
        origins.allow_inf(model.buffers())
        loss = compute_loss()
    if _is_finite(loss):
        return "the loss was finite when recomputed, so the operation is unknown"
    origin = origins.find(loss) or "one with an infinite constant"
    return f"the first operation with a non-finite result is {origin}"


def diagnose_gradient(model: nn.Module, compute_loss: Callable[[], Tensor]) -> str:
    """Return, as a clause, the first operation whose backward pass turns finite gradients into non-finite ones.

    compute_loss: as in `diagnose_loss`. The gradients stored in the model are not changed.
    """
    modules = _Modules(model)
    with modules:
        loss = compute_loss()
    modules.label(loss)
    nonfinite: list[str] = []
    for node, module_name in modules.names_by_node.items():
        node.register_hook(_record_nonfinite(f"{node.name().rpartition('::')[2]} in {module_name}", nonfinite))
    torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    if not nonfinite:
        return "the gradients of this micro-batch are finite; their sum over micro-batches or ranks is not"
    return f"the first operation whose backward pass has a non-finite result is {nonfinite[0]}"


def first_nonfinite_gradient(model: nn.Module) -> str | None:
    """Return the name of the parameter closest to the loss among those with a non-finite gradient, or None."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    if not gradients or torch.nn.utils.get_total_norm(gradients.values()).isfinite():
        return None
    # parameters are listed from input to output, and the backward pass reaches the last ones first
    return next((name for name in reversed(gradients) if not gradients[name].isfinite().all()), None)


class _Modules:
    """Tracks which module is running, and which module created each node of the autograd graph."""

    def __init__(self, model: nn.Module) -> None:
        self.names_by_node: dict[Node, str] = {}  # keeps the nodes alive, because they are compared by identity
        self._names = {module: f"{name} ({type(module).__name__})" for name, module in model.named_modules() if name}
        self._names[model] = "the model itself"
        self._stack = ["the loss"]

    @property
    def innermost(self) -> str:
        return self._stack[-1]

    def __enter__(self) -> "_Modules":
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
        """Assign the running module to all nodes upstream of these tensors that have no module yet."""
        queue = [tensor.grad_fn for tensor in _tensors(values) if tensor.grad_fn is not None]
        while queue:
            node = queue.pop()
            if node not in self.names_by_node:
                self.names_by_node[node] = self.innermost
                queue += [parent for parent, _ in node.next_functions if parent is not None]


class _Origins(TorchDispatchMode):
    """Tracks which operation produced the NaN and inf in each storage."""

    def __init__(self, modules: _Modules) -> None:
        super().__init__()
        self._modules = modules
        self._origins: dict[int, str | None] = {}  # by storage address; None for intended infinities, as in masks
        self._first: str | None = None

    def find(self, tensor: Tensor) -> str | None:
        """Return the operation, with its module, that produced the NaN or inf of a tensor."""
        return self._origins.get(_storage_address(tensor))

    def allow_inf(self, tensors: Iterable[Tensor]) -> None:
        """Treat infinities in these tensors as intended."""
        self._origins.update((_storage_address(tensor), None) for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read, written = _split_tensors(func, args, kwargs)
        # tensors that are modified in place must be inspected before the call; copy_ does not read its destination
        nonfinite = [t for t in written if not _is_finite(t)] if "copy_" not in func.name() else []
        output = func(*args, **kwargs)
        for tensor in [*_tensors(output), *written]:
            if _is_finite(tensor) or not (read or written):
                if all(_storage_address(tensor) != _storage_address(other) for other in (*read, *written)):
                    self._origins.pop(_storage_address(tensor), None)  # the allocator has reused its storage
            else:
                nonfinite += [t for t in read if not _is_finite(t)]
                origin = self._trace(func, tensor, nonfinite, (args, kwargs))
                self._origins[_storage_address(tensor)] = origin
                self._first = self._first or origin
        return output

    def _trace(self, func: Any, output: Tensor, nonfinite: list[Tensor], arguments: object) -> str | None:
        name = func.name().partition("::")[2].partition(".")[0]
        operation = f"{name} in {self._modules.innermost}"
        if not nonfinite:
            return None if _has_infinite_constant(arguments) and not output.isnan().any() else operation
        for tensor in nonfinite:
            # A storage without an origin was written by a kernel that bypasses the dispatcher.
            unknown = self._first or f"the input of {name} in {self._modules.innermost}"
            origin = self._origins.get(_storage_address(tensor), unknown)
            if origin is not None:
                return origin
        input_has_nan = any(tensor.isnan().any() for tensor in nonfinite)
        return operation if output.isnan().any() and not input_has_nan else None


def _split_tensors(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that an operation only reads, and those that it modifies in place. Ignores out= tensors."""
    read: list[Tensor] = []
    written: list[Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        value = kwargs.get(argument.name) if argument.kwarg_only else args[index] if index < len(args) else None
        in_place = argument.alias_info is not None and argument.alias_info.is_write
        if not (in_place and argument.is_out):
            (written if in_place else read).extend(_tensors(value))
    return read, written


def _record_nonfinite(operation: str, nonfinite: list[str]) -> Callable[..., None]:
    """Return a hook that appends the operation to the list if its backward pass has a non-finite result."""

    def hook(grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]) -> None:
        if not nonfinite and not all(map(_is_finite, _tensors(grad_inputs))):
            is_sum = not all(map(_is_finite, _tensors(grad_outputs)))
            nonfinite.append(f"the sum of the gradients of the output of {operation}" if is_sum else operation)

    return hook


def _buffers_to_check(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all buffers except running statistics of batch norm in training mode, which the failed step has changed."""
    for prefix, module in model.named_modules():
        if not (isinstance(module, nn.modules.batchnorm._NormBase) and module.training):
            yield from module.named_buffers(prefix, recurse=False)


def _is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all())


def _has_infinite_constant(value: object) -> bool:
    if isinstance(value, float):
        return value in (float("inf"), float("-inf"))
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_infinite_constant, values))


def _storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
