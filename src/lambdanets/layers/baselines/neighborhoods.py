"""Neighborhoods of r x r positions, and weighted sums over them."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.checks import check_sizes


def check_scope(scope: Any) -> None:
    """Raise ValueError unless the scope is odd and positive."""
    check_sizes(scope=scope)
    if scope % 2 == 0:
        raise ValueError(f"scope must be odd, got {scope}")


def pad_zeros(maps: Tensor, scope: int) -> Tensor:
    return F.pad(maps, (scope // 2,) * 4)


def pad_border(maps: Tensor, scope: int) -> Tensor:
    """Replicate padding, which unlike reflection works for maps of any size."""
    return F.pad(maps, (scope // 2,) * 4, mode="replicate")


def neighbors(padded: Tensor, scope: int) -> Tensor:
    """(b, c, H + r - 1, W + r - 1) to (b, c, r r, n): the neighborhood of each of the n = H W positions."""
    return F.unfold(padded, scope).unflatten(1, (padded.shape[1], scope * scope))


def weighted_sum(weights: Tensor, padded: Tensor, scope: int) -> Tensor:
    """y[g,c,n] = sum_j weights[g,j,n] padded[g,c, n + j]: weights (b, g, r r, n), maps (b, g c, ..), to (b, g c, H, W).

    Accumulates shifted maps, because unfolding all channels would take r r times their memory.
    """
    height, width = padded.shape[2] - scope + 1, padded.shape[3] - scope + 1
    groups = padded.unflatten(1, (weights.shape[1], -1))
    weights = weights.unflatten(3, (height, width)).unsqueeze(2)  # (b, g, 1, r r, H, W)
    total = weights.new_zeros(())
    for row in range(scope):
        for column in range(scope):
            shifted = groups[..., row : row + height, column : column + width]
            total = total + weights.select(3, row * scope + column) * shifted
    return total.flatten(1, 2)
