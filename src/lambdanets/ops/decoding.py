"""Step-by-step decoding of the causal operation: the recurrent state and the output at the next position."""

from typing import NamedTuple

import torch
from torch import Tensor

from lambdanets.ops.definition import embeddings_at
from lambdanets.ops.precision import sqrt_or_one


class ContentState(NamedTuple):
    """Running sums over the context so far, in float32 or wider; the size does not depend on the context length.

    maxima: maxima of the softmax keys, (b, k, u). norms: normalizers of the keys, (b, k, u).
    sums: sums of keys times values, (b, k, u, v). States of layers have an axis of lambdas after b. See
    `lambdanets.ops.causal`.
    """

    maxima: Tensor
    norms: Tensor
    sums: Tensor


def content_step(
    queries: Tensor, keys: Tensor, values: Tensor, state: ContentState, normalize_keys: str | None
) -> tuple[Tensor, ContentState]:
    """Return the content term at the next position, equal to `causal_content` within rounding, and the new state.

    queries: (b, h, k). keys: (b, k, u). values: (b, v, u). The content term is (b, h, v). All have the dtype of sums.
    Cost: b (u + h) k v multiply-adds.
    """
    maxima, norms, sums = state.maxima, state.norms, state.sums
    weights = keys
    if normalize_keys == "softmax":
        maxima = torch.maximum(maxima, keys)
        decay, weights = (state.maxima - maxima).exp(), (keys - maxima).exp()
        norms, sums = norms * decay + weights, sums * decay.unsqueeze(-1)
    elif normalize_keys == "l2":
        norms = norms + keys.square()
    sums = sums + weights.unsqueeze(-1) * values.transpose(1, 2).unsqueeze(1)
    divisor = {"softmax": norms, "l2": sqrt_or_one(norms), None: torch.ones_like(norms)}[normalize_keys]
    content = (sums / divisor.unsqueeze(-1)).sum(dim=2)  # (b, k, v)
    return queries @ content, ContentState(maxima, norms, sums)


def window_embeddings(table: Tensor, grid: tuple[int, ...], dilation: int, context: Tensor) -> Tensor:
    """Return e[n, m] = R[center + (m - n) / dilation] (m, k, u) for context positions m, of which the last is also n.

    table: (r_1..r_D, k, u). grid: (S_1..S_D), of which S_1 is not used. context: int64, positions in
    row-major order. Positions before the first, which are negative, get arbitrary embeddings.
    """
    offsets = []
    for axis, side in enumerate(grid):
        coordinates = context.div(torch.Size(grid[axis + 1 :]).numel(), rounding_mode="floor")
        coordinates = coordinates % side if axis > 0 else coordinates
        offsets.append(coordinates - coordinates[-1:])
    return embeddings_at(table, offsets, dilation)


def causal_window(scope: tuple[int, ...], grid: tuple[int, ...] | None, dilation: int) -> int:
    """Return the number of context positions in the window of a causal table, including the current position.

    Positions are in row-major order. grid: None for a sequence of any length.
    """
    total, stride = 1, 1
    for r, side in zip(reversed(scope), reversed(grid or (1 << 62,)), strict=True):
        total += min(r // 2 * dilation, side - 1) * stride
        stride *= side
    return total
