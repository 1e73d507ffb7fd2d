"""Tables of relative position embeddings: cropped, resized, and expanded to all pairs of positions.

A table R (r_1..r_D, k, u) has one entry per relative offset m - n; offset 0 is at the center. A table can be used with
any grid: offsets beyond the grid are cropped, and embeddings of offsets beyond the table are zero.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.checks import check_flags, check_shape, check_tensors
from lambdanets.ops.precision import FLOATING, accumulation_dtype
from lambdanets.ops.tracing import unfold

_INTERPOLATIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}


def check_table(table: Tensor, dimensions: int, sizes: dict[str, int], *channels: str) -> None:
    """`check_shape` of a table with this number of offset axes, and then one of the forms of channels."""
    offsets = " ".join(f"r_{axis + 1}" for axis in range(dimensions))
    check_shape(sizes, "table", table, *(f"{offsets} {form}" for form in channels))
    if any(side % 2 == 0 for side in table.shape[:dimensions]):
        raise ValueError(f"table must have odd sides, so that offset 0 is its center, got {tuple(table.shape)}")


def crop_to_grid(table: Tensor, grid: Sequence[int]) -> Tensor:
    """Crop a table (r_1..r_D, k, u) to the offsets that exist on the grid, which gives odd sides of at most 2 S - 1."""
    for axis, (scope, side) in enumerate(zip(map(int, table.shape), grid, strict=False)):
        if scope >= 2 * side:
            table = table.narrow(axis, scope // 2 - side + 1, 2 * side - 1)
    return table


def mask_future(table: Tensor, dimensions: int) -> Tensor:
    """Set the embeddings of offsets after 0 in row-major order to zero."""
    sides = table.shape[:dimensions]
    order = torch.arange(math.prod(sides), device=table.device).reshape(sides)
    return table.masked_fill((order > math.prod(sides) // 2)[..., None, None], 0)


def pairwise_embeddings(
    table: Tensor, grid: Sequence[int], dilation: int, context_grid: Sequence[int] | None = None
) -> Tensor:
    """Return E (S_1..S_D, k, u, C_1..C_D), with query positions first, from a table R (r_1..r_D, k, u).

    e[n,m] = R[center + (m - n) / dilation], or zero if the offset is outside the table or not a multiple of the
    dilation. context_grid: sides C of the context grid, which has the same origin as the queries' grid; None if both
    grids are equal. Cost: memory for E, no arithmetic.

    Uses windows of the padded or cropped table because their gradient, unlike that of an indexed gather, is summed in
    a fixed order.
    """
    dimensions = len(grid)
    for axis, (side, context) in enumerate(zip(grid, grid if context_grid is None else context_grid, strict=True)):
        farthest = table.shape[axis] // 2 * dilation
        if dilation > 1:
            # each entry and dilation - 1 zeros
            table = pad_axis(table.unsqueeze(axis + 1), axis + 1, 0, dilation - 1).flatten(axis, axis + 1)
        # Offsets range from -(S - 1) to C - 1.
        table = pad_axis(table, axis, side - 1 - farthest, context - farthest - dilation)
        # Window i of length C starts at offset i - (S - 1), so it belongs to query position S - 1 - i.
        table = unfold(table, axis, side, context)
    return table.flip(tuple(range(dimensions)))


def resize_table(table: Tensor, sides: Sequence[int], *, keep_sum: bool = True) -> Tensor:
    """Resize a table of relative embeddings to another resolution by linear interpolation.

    Args:
        table: (r_1..r_D, k[, u]) with odd r.
        sides: new odd sides r'_1..r'_D. The ends and the center (offset 0) of each axis are kept. An axis that shrinks
            to one entry keeps its center; an axis that grows from one entry is zero-padded, because embeddings of
            offsets beyond a table are zero.
        keep_sum: multiply the entries by prod((r - 1) / (r' - 1)) over all axes where r and r' exceed 1. Lambdas are
            sums over positions, so this keeps their scale when the resolution changes. If False, the entries are not
            scaled.

    Returns a new tensor (r'_1..r'_D, k[, u]) in the table's dtype, computed in float32 or wider. Differentiable.
    Cost: 2^D k u prod(r') multiply-adds. Raises ValueError naming the invalid argument.
    """
    check_tensors(table=table)
    check_flags(keep_sum=keep_sum)
    are_odd = isinstance(sides, Sequence) and all(type(r) is int and r > 0 and r % 2 for r in sides)
    if not are_odd or not 1 <= len(sides) <= 3:
        raise ValueError(f"sides must be 1, 2 or 3 integers, odd and positive, got {sides!r}")
    check_table(table, len(sides), {}, "k", "k u")
    if table.dtype not in FLOATING:
        raise ValueError(f"table must be float16, bfloat16, float32 or float64, got {table.dtype}")
    dimensions = len(sides)
    old_sides, channels = table.shape[:dimensions], table.shape[dimensions:]
    if tuple(old_sides) == tuple(sides):
        return table.clone()
    resized = table.to(accumulation_dtype(table.dtype))
    for axis, side in enumerate(sides):
        if side == 1:
            resized = resized.narrow(axis, old_sides[axis] // 2, 1)
    size = [1 if r == 1 else side for r, side in zip(old_sides, sides, strict=True)]
    maps = resized.flatten(dimensions).movedim(-1, 0).unsqueeze(0)  # (1, (k u), r..)
    maps = F.interpolate(maps, size, mode=_INTERPOLATIONS[dimensions], align_corners=True)
    resized = maps.squeeze(0).movedim(0, -1).reshape(*size, *channels)
    for axis, (r, side) in enumerate(zip(old_sides, sides, strict=True)):
        if r == 1:
            resized = pad_axis(resized, axis, side // 2, side // 2)
    if keep_sum:
        pairs = zip(old_sides, sides, strict=True)
        resized = resized * math.prod((r - 1) / (side - 1) for r, side in pairs if r > 1 < side)
    return resized.to(table.dtype)


def pad_axis(x: Tensor, axis: int, before: int, after: int, value: float = 0.0) -> Tensor:
    """Pad one axis, with zeros by default; negative numbers crop."""
    return F.pad(x, [0, 0] * (x.ndim - 1 - axis) + [before, after], value=value)
