"""Pooling of maps (b, channels, S_1..S_D)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def average_pool(maps: Tensor, stride: int) -> Tensor:
    """Average-pool with kernel size 2 stride - 1 and count_include_pad=False; sides S become ceil(S / stride).

    Strided lambda layers use it (Sec. F.2 of the paper).
    """
    sizes, border = (2 * stride - 1, stride), stride - 1
    if maps.ndim < 5:
        return (F.avg_pool1d if maps.ndim == 3 else F.avg_pool2d)(maps, *sizes, border, count_include_pad=False)
    # avg_pool3d raises for sides smaller than its window
    padded, ones = (F.pad(x, (border,) * 6) for x in (maps, torch.ones_like(maps[:1, :1])))
    return F.avg_pool3d(padded, *sizes) / F.avg_pool3d(ones, *sizes)


def check_pool(pool: Any, stride: int, dimensions: int) -> None:
    """Raise ValueError unless `pool` is an nn.AvgPool1d, 2d or 3d that maps sides S to ceil(S / stride)."""
    expected = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dimensions - 1]
    if type(pool) is not expected:
        raise ValueError(f"pool must be an nn.{expected.__name__} or None, got {type(pool).__name__}")
    if getattr(pool, "divisor_override", None) is not None:
        raise ValueError(f"pool must have divisor_override=None, got {pool}")
    first = max(_sides(pool.kernel_size)) + 1
    for side in range(first, first + 2 * stride):
        output_sides = pool(torch.empty(1, 1, *(side,) * dimensions, device="meta")).shape[2:]
        if set(output_sides) != {-(-side // stride)}:
            raise ValueError(f"pool must map sides S to ceil(S / stride) for stride = {stride}, got {pool}")


def counts_padding(pool: Any) -> bool:
    """Whether the averages of a pooling module include the zeros that it pads with."""
    return pool.count_include_pad and any(_sides(pool.padding))


def _sides(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else size
