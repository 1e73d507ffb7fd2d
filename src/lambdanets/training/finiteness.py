"""Names the operation, layer or parameter where NaN or inf first appeared, by computing a step once more."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode


def explain_loss(model: nn.Module, images: object, compute_loss: Callable[[], Tensor]) -> str:
    """A clause that says where a non-finite loss comes from: a parameter, a buffer, the images, or an operation.

    compute_loss: computes the loss once more, as it was: same batch, random state, autocast and code path. Each
    operation is looked at below autograd, so that those within a layer, a function or the loss are seen too. The one
    named is where the NaN or inf of the loss began: its inputs were finite. No hook is put on any module, because
    layers call projections with hooks in another way.
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
        return "computed once more it was finite, so that no operation can be named"
    origin = origins.of(loss) or "one with an infinite constant"
    return f"the first operation with a non-finite result is {origin}"


def explain_gradient(model: nn.Module, compute_loss: Callable[[], Tensor]) -> str:
    """A clause that says which operation's backward pass first gave a non-finite gradient from finite ones.

    compute_loss: as in `explain_loss`. The model's gradients are left as they are.
    """
    modules = _Modules(model)
    with modules:
        loss = compute_loss()
    modules.label(loss)
    found: list[str] = []
    for node, place in modules.places.items():
        node.register_hook(_watch(f"{node.name().rpartition('::')[2]} in {place}", found))
    torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    if not found:
        return "this micro-batch's gradients are finite, so that it is a sum over micro-batches or processes"
    return f"the first operation whose backward pass has a non-finite result is {found[0]}"


def first_gradient_not_finite(model: nn.Module) -> str | None:
    """The parameter nearest to the loss whose gradient is not finite, or None."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    if not gradients or torch.nn.utils.get_total_norm(gradients.values()).isfinite():
        return None
    # parameters are listed from the input on, so that the last is the first the backward pass reaches
    return next((name for name in reversed(gradients) if not gradients[name].isfinite().all()), None)


class _Modules:
    """Which module of a model is being computed, and, for each node of the autograd graph, in which one it was made."""

    def __init__(self, model: nn.Module) -> None:
        self.places: dict[Node, str] = {}  # keeps the nodes, which are known by identity
        self._names = {module: f"{name} ({type(module).__name__})" for name, module in model.named_modules() if name}
        self._names[model] = "the model itself"
        self._stack = ["the loss"]

    @property
    def innermost(self) -> str:
        return self._stack[-1]

    def __enter__(self) -> "_Modules":
        # hooks of all modules, not of one: `layers.projection` looks for the latter
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
        """Note the module being computed as that of all nodes before these tensors that are not noted yet."""
        ahead = [tensor.grad_fn for tensor in _tensors(values) if tensor.grad_fn is not None]
        while ahead:
            node = ahead.pop()
            if node not in self.places:
                self.places[node] = self.innermost
                ahead += [before for before, _ in node.next_functions if before is not None]


class _Origins(TorchDispatchMode):
    """Follows NaN and inf from the operation that made them, by the memory they lie in."""

    def __init__(self, modules: _Modules) -> None:
        super().__init__()
        self._modules = modules
        self._made_by: dict[int, str | None] = {}  # by storage; None for infinite constants, such as those of masks

    def of(self, tensor: Tensor) -> str | None:
        """The operation, and its module, that the NaN or inf of a tensor comes from."""
        return self._made_by.get(_place(tensor))

    def allow_inf(self, tensors: Iterable[Tensor]) -> None:
        """Take what is infinite in these tensors for meant, and not for the beginning of a non-finite loss."""
        self._made_by.update((_place(tensor), None) for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read, written = _split(func, args, kwargs)
        # what is written in place can be looked at beforehand alone; copy_ does not read it
        spoiled = [t for t in written if not _is_finite(t)] if "copy_" not in func.name() else []
        output = func(*args, **kwargs)
        for tensor in [*_tensors(output), *written]:
            if _is_finite(tensor):
                if all(_place(tensor) != _place(other) for other in (*read, *written)):
                    self._made_by.pop(_place(tensor), None)  # new memory, in the place of what was freed
            elif read or written:
                spoiled += [t for t in read if not _is_finite(t)]
                self._made_by[_place(tensor)] = self._trace(func, tensor, spoiled, (args, kwargs))
        return output

    def _trace(self, func: Any, tensor: Tensor, spoiled: list[Tensor], given: object) -> str | None:
        name = func.name().partition("::")[2].partition(".")[0]
        here = f"{name} in {self._modules.innermost}"
        if not spoiled:
            return None if _has_infinite_constant(given) and not tensor.isnan().any() else here
        for other in spoiled:
            # memory that no operation was seen to write: a kernel's, which PyTorch does not see
            origin = self._made_by.get(_place(other), f"what {name} was given in {self._modules.innermost}")
            if origin is not None:
                return origin
        nan_before = any(other.isnan().any() for other in spoiled)
        return here if tensor.isnan().any() and not nan_before else None


def _split(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that an operation reads alone, and those that it reads and writes; neither has those of out=."""
    read: list[Tensor] = []
    written: list[Tensor] = []
    for number, argument in enumerate(func._schema.arguments):
        value = kwargs.get(argument.name) if argument.kwarg_only else args[number] if number < len(args) else None
        in_place = argument.alias_info is not None and argument.alias_info.is_write
        if not (in_place and argument.is_out):
            (written if in_place else read).extend(_tensors(value))
    return read, written


def _watch(place: str, found: list[str]) -> Callable[..., None]:
    def look(after: tuple[Tensor | None, ...], before: tuple[Tensor | None, ...]) -> None:
        if not found and not all(map(_is_finite, _tensors(after))):
            sum_of = "" if all(map(_is_finite, _tensors(before))) else "the sum of gradients that reach "
            found.append(sum_of + place)

    return look


def _buffers_read(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers but for those that batch norm in training writes and never reads, which the failed step has spoilt."""
    for prefix, module in model.named_modules():
        if not (isinstance(module, nn.modules.batchnorm._NormBase) and module.training):
            yield from module.named_buffers(prefix, recurse=False)


def _is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all())


def _has_infinite_constant(given: object) -> bool:
    if isinstance(given, float):
        return given in (float("inf"), float("-inf"))
    items = given.values() if isinstance(given, dict) else given if isinstance(given, list | tuple) else ()
    return any(map(_has_infinite_constant, items))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple | dict):
        for item in output.values() if isinstance(output, dict) else output:
            yield from _tensors(item)
