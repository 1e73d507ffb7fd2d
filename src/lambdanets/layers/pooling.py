"""Pooling of maps (b, channels, S_1..S_D)."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AveragePool3d(nn.AvgPool3d):
    """nn.AvgPool3d with count_include_pad=False, of each slice and then along the depth.

    PyTorch refuses sides smaller than the window, bfloat16 and float16 on CPUs, and deterministic gradients on GPUs.
    """

    def forward(self, input: Tensor) -> Tensor:
        pool: Any = partial(F.avg_pool2d, count_include_pad=False)
        size, stride, border = self.kernel_size, self.stride, self.padding
        slices = pool(input.transpose(1, 2).flatten(0, 1), size, stride, border)
        maps = slices.unflatten(0, (input.shape[0], input.shape[2])).transpose(1, 2)
        return pool(maps.flatten(3), (size, 1), (stride, 1), (border, 0)).unflatten(3, maps.shape[3:])


def average_pool(stride: int, dimensions: int) -> nn.Module:
    """Return the pooling of strided lambda layers (Sec. F.2 of the paper), with sides S to ceil(S / stride)."""
    pool: Any = (nn.AvgPool1d, nn.AvgPool2d, AveragePool3d)[dimensions - 1]
    return pool(2 * stride - 1, stride, stride - 1, count_include_pad=False)


def check_pool(pool: Any, stride: int, dimensions: int) -> None:
    """Raise ValueError unless `pool` is an nn.AvgPool1d, 2d or 3d that maps sides S to ceil(S / stride)."""
    expected = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dimensions - 1]
    if type(pool) is not expected:
        raise ValueError(f"pool must be an nn.{expected.__name__} or None, got {type(pool).__name__}")
    first = max(_sides(pool.kernel_size)) + 1
    for side in range(first, first + 2 * stride):
        output_sides = pool(torch.empty(1, 1, *(side,) * dimensions, device="meta")).shape[2:]
        if set(output_sides) != {-(-side // stride)}:
            raise ValueError(f"pool must map sides S to ceil(S / stride) for stride = {stride}, got {pool}")


def counts_padding(pool: Any) -> bool:
    """Whether the averages of a pooling module count positions outside of the map, as zeros."""
    divides_by_constant = getattr(pool, "divisor_override", None) is not None
    return divides_by_constant or (pool.count_include_pad and any(_sides(pool.padding)))


def _sides(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else size
