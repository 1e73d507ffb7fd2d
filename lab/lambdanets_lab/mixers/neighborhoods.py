"""Neighborhoods of r x r positions, and weighted sums over them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.checks import check_sizes
from lambdanets.ops.precision import accumulation_dtype


def check_scope(scope: Any) -> None:
    """Raise ValueError unless the scope is odd and positive."""
    check_sizes(scope=scope)
    if scope % 2 == 0:
        raise ValueError(f"scope must be odd, got {scope}")


def pad_zeros(maps: Tensor, scope: int) -> Tensor:
    return F.pad(maps, (scope // 2,) * 4)


def pad_border(maps: Tensor, scope: int) -> Tensor:
    """Replicate the border. Unlike reflection, this works for maps of any size."""
    return F.pad(maps, (scope // 2,) * 4, mode="replicate")


def neighbors(padded: Tensor, scope: int) -> Tensor:
    """Return the r x r neighborhood of each position, (b, c, r r, n), of padded maps (b, c, H + r - 1, W + r - 1)."""
    return F.unfold(padded, scope).unflatten(1, (padded.shape[1], scope * scope))


def weighted_sum(weights: Tensor, padded: Tensor, scope: int) -> Tensor:
    """Return the weighted sum over the neighborhood of each position, (b, g c, H, W), with g groups of channels.

    y[g,c,n] = sum_j weights[g,j,n] padded[g,c,n + j], for weights (b, g, r r, n) and padded maps (b, g c, H + r - 1,
    W + r - 1). It accumulates shifted maps, because unfolding all channels would need r r times their memory. Sums
    are in float32 or wider.
    """
    dtype, compute_dtype = torch.promote_types(weights.dtype, padded.dtype), accumulation_dtype(padded.dtype)
    weights, padded = weights.to(compute_dtype), padded.to(compute_dtype)
    height, width = padded.shape[2] - scope + 1, padded.shape[3] - scope + 1
    groups = padded.unflatten(1, (weights.shape[1], -1))
    weights = weights.unflatten(3, (height, width)).unsqueeze(2)  # (b, g, 1, r r, H, W)
    total = weights.new_zeros(())
    for row in range(scope):
        for column in range(scope):
            shifted = groups[..., row : row + height, column : column + width]
            total = total + weights.select(3, row * scope + column) * shifted
    return total.flatten(1, 2).to(dtype)
