"""Decoding steps of the causal operation: its state, and the output at the next position."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lambdanets.ops.precision import root_or_one, wide


@dataclass(frozen=True)
class ContentState:
    """Running sums over the context so far, in float32 or wider; b k u v elements for any context length.

    maxima (b, k, u): of the softmax keys. norms (b, k, u): normalizers of the keys. sums (b, k, u, v): keys times
    values. See `lambdanets.ops.causal`.
    """

    maxima: Tensor
    norms: Tensor
    sums: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], value_depth: int, like: Tensor) -> "ContentState":
        """The state of an empty context; shape (b, k, u), device of `like`, dtype at least float32."""
        dtype = wide(like.dtype)
        maxima = torch.full(shape, torch.finfo(dtype).min, dtype=dtype, device=like.device)
        return cls(maxima, torch.zeros_like(maxima), maxima.new_zeros(*shape, value_depth))


def content_step(
    queries: Tensor, keys: Tensor, values: Tensor, state: ContentState, normalize_keys: str | None
) -> tuple[Tensor, ContentState]:
    """The content term at the next position, equal to `causal_content` up to rounding, and the state after it.

    queries (b, h, k), keys (b, k, u), values (b, v, u). Returns (b, h, v). Cost: b (u + h) k v multiply-adds.
    """
    dtype = queries.dtype
    queries, keys, values = (x.to(state.sums.dtype) for x in (queries, keys, values))
    maxima, norms, sums = state.maxima, state.norms, state.sums
    weights = keys
    if normalize_keys == "softmax":
        maxima = torch.maximum(maxima, keys)
        decay, weights = (state.maxima - maxima).exp(), (keys - maxima).exp()
        norms, sums = norms * decay + weights, sums * decay.unsqueeze(-1)
    elif normalize_keys == "l2":
        norms = norms + keys.square()
    sums = sums + weights.unsqueeze(-1) * values.transpose(1, 2).unsqueeze(1)
    divisor = {"softmax": norms, "l2": root_or_one(norms), None: torch.ones_like(norms)}[normalize_keys]
    content = (sums / divisor.unsqueeze(-1)).sum(dim=2)  # (b, k, v)
    return (queries @ content).to(dtype), ContentState(maxima, norms, sums)


def embeddings_of_position(table: Tensor, grid: tuple[int, ...], dilation: int, position: int, count: int) -> Tensor:
    """e[n, m] (count, k, u) of query n = position and the last `count` context positions, n included, row major.

    table (r_1..r_D, k, u), grid (S_1..S_D).
    """
    dimensions = len(grid)
    context = torch.arange(position - count + 1, position + 1, device=table.device)
    index, inside = torch.zeros_like(context), torch.ones_like(context, dtype=torch.bool)
    strides = [1] * dimensions
    for axis in range(dimensions - 1, 0, -1):
        strides[axis - 1] = strides[axis] * grid[axis]
    for axis, stride in enumerate(strides):
        offset = context // stride % grid[axis] - position // stride % grid[axis]
        step = offset.div(dilation, rounding_mode="floor") + table.shape[axis] // 2
        inside &= (offset % dilation == 0) & (step >= 0) & (step < table.shape[axis])
        index = index * table.shape[axis] + step.clamp(0, table.shape[axis] - 1)
    rows = table.flatten(0, dimensions - 1)[index]
    return rows.masked_fill(~inside[:, None, None], 0)


def causal_reach(scope: tuple[int, ...], grid: tuple[int, ...], dilation: int) -> int:
    """The number of positions, the current one included, that a causal table reaches back to in row-major order."""
    total, stride = 1, 1
    for r, side in zip(reversed(scope), reversed(grid), strict=True):
        total += min(r // 2 * dilation, side - 1) * stride
        stride *= side
    return total
