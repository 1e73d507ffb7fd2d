"""A dilated interaction as d^D undilated ones, in the batch: of the positions of each phase, the position modulo d."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.precision import accumulation_dtype


def undilate(
    queries: Tensor, values: Tensor, content: Tensor | None, grid: Sequence[int], dilation: int
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, ...]]:
    """Return the factors of the undilated interaction, and its grid with sides ceil(S / d)."""
    dilation = _within(grid, dilation)
    if content is not None:
        wide = content.to(accumulation_dtype(content.dtype))  # its gradient is the sum over phases
        content = wide.repeat_interleave(dilation ** len(grid), dim=0)
    queries = _split_phases(queries.transpose(1, 2), grid, dilation).transpose(1, 2)
    return queries, _split_phases(values, grid, dilation), content, _phase_grid(grid, dilation)


def redilate(output: Tensor, grid: Sequence[int], dilation: int) -> Tensor:
    """Return the output (b, h, n, v) of the dilated interaction from that of the undilated one, (b d^D, h, n', v)."""
    dimensions, dilation = len(grid), _within(grid, dilation)
    x = output.transpose(1, 2).unflatten(1, _phase_grid(grid, dilation)).unflatten(0, (-1, *(dilation,) * dimensions))
    interleaved = [dim for axis in range(dimensions) for dim in (1 + dimensions + axis, 1 + axis)]
    x = x.permute(0, *interleaved, *range(1 + 2 * dimensions, x.ndim))
    for axis in range(dimensions):
        x = x.flatten(1 + axis, 2 + axis)
    cropped = [size for axis in reversed(range(dimensions)) for size in (0, grid[axis] - x.shape[1 + axis])]
    return F.pad(x, [0, 0, 0, 0, *cropped]).flatten(1, dimensions).transpose(1, 2)


def _within(grid: Sequence[int], dilation: int) -> int:
    """The dilation, at most the largest side, since farther positions are outside of the grid."""
    if torch.compiler.is_compiling() or any(isinstance(side, torch.SymInt) for side in grid):
        return dilation  # graphs are the same for all sides
    return min(dilation, max(grid))


def _phase_grid(grid: Sequence[int], dilation: int) -> tuple[int, ...]:
    return tuple((side + dilation - 1) // dilation for side in grid)  # ONNX rounds quotients to zero


def _split_phases(x: Tensor, grid: Sequence[int], dilation: int) -> Tensor:
    """Reshape (b, n, ...) to (b d^D, n', ...); the grid is zero-padded to multiples of d."""
    x = x.unflatten(1, tuple(grid))
    trailing = x.ndim - 1 - len(grid)
    # Padding by d, of which at least 1 is cut off, gives the same graph for all sides.
    x = F.pad(x, [0, 0] * trailing + [0, dilation] * len(grid))
    for axis, side in enumerate(_phase_grid(grid, dilation)):
        x = x.narrow(1 + 2 * axis, 0, side * dilation).unflatten(1 + 2 * axis, (side, dilation))
    phases = range(2, 2 + 2 * len(grid), 2)
    positions = range(1, 1 + 2 * len(grid), 2)
    x = x.permute(0, *phases, *positions, *range(x.ndim - trailing, x.ndim))
    return x.flatten(0, len(grid)).flatten(1, len(grid))
