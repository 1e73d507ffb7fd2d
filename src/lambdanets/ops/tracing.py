"""What only traces need: torch.compile with dynamic sizes, torch.export and torch.jit.trace."""

import torch
from torch import Tensor


def is_exporting() -> bool:
    """Return whether torch.export traces this call, which torch.compile does not."""
    return torch.compiler.is_exporting()


# PyTorch 2.11 replaces torch.compiler.is_exporting() by True in every graph that torch.compile traces, unless the
# function is called as a constant. torch.compiler.assume_constant_result sets only this attribute, but imports
# torch._dynamo to do so, in more than a second. Later versions (2.14) do not need it, so they may rename it.
is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def static_shape(x: Tensor) -> tuple[int, ...]:
    """Return the shape as Python integers, also in torch.jit.trace, where the elements of x.shape are tensors."""
    return tuple(map(int, x.shape)) if torch.jit.is_tracing() else tuple(x.shape)


def fix_sides(x: Tensor, first: int) -> Tensor:
    """Return x; a trace of torch.jit then raises for other sides of the axes from `first` on."""
    if torch.jit.is_tracing():
        for axis, side in enumerate(static_shape(x)[first:], first):
            (x,) = x.split([side], axis)  # expand would accept a side of 1
    return x


def unfold(x: Tensor, axis: int, count: int, length: int, step: int = 1) -> Tensor:
    """Return `count` windows of the given length along an axis, starting at 0, step, 2 step, .., as a new last axis.

    x must have exactly (count - 1) step + length elements along the axis. In eager mode this is `Tensor.unfold`.
    torch.compile would recompile unfold for every length, and the exporter of traces lacks it. So graphs repeat x, and
    read it in rows that are longer than x by `step`, so that each row starts `step` elements later.
    """
    if not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
        return x.unfold(axis, length, step)
    size = (count - 1) * step + length
    repeats = count + 1 if step == 1 else count + 1 + step  # at least count (size + step) / size
    # PyTorch's exporter of traces writes negative arguments of movedim as they are, which ONNX does not allow
    rows = x.movedim(axis, x.ndim - 1).unsqueeze(-2).expand(*(-1,) * (x.ndim - 1), repeats, size).flatten(-2)
    rows = rows.narrow(-1, 0, count * (size + step)).unflatten(-1, (count, size + step)).narrow(-1, 0, length)
    return rows.movedim(x.ndim - 1, axis)
