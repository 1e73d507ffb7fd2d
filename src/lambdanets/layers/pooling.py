"""Pooling and memory format of maps (b, channels, S_1..S_D)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def average_pool(maps: Tensor, stride: int) -> Tensor:
    """Average-pool with kernel size 2 stride - 1 and count_include_pad=False; sides S become ceil(S / stride).

    Strided lambda layers use it (Sec. F.2 of the paper).
    """
    options: dict[str, Any] = {
        "kernel_size": 2 * stride - 1,
        "stride": stride,
        "padding": stride - 1,
        "count_include_pad": False,
    }
    if maps.ndim < 5:
        return (F.avg_pool1d if maps.ndim == 3 else F.avg_pool2d)(maps, **options)
    # avg_pool3d raises for sides smaller than the window, so pool each slice in 2-D first, then along the depth
    slices = F.avg_pool2d(maps.flatten(1, 2), **options).unflatten(1, maps.shape[1:3])
    columns = slices.movedim(2, 4)
    pooled = F.avg_pool1d(columns.flatten(1, -2), **options).unflatten(1, columns.shape[1:-1]).movedim(4, 2)
    return pooled.contiguous(memory_format=memory_format(maps))


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


def memory_format(x: Tensor) -> torch.memory_format:
    """Return channels_last or channels_last_3d if x is only in that memory format, else contiguous_format.

    ONNX has no memory formats, and vmap raises if asked for one.
    """
    is_transformed = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    if x.ndim not in (4, 5) or x.is_contiguous() or is_transformed or torch.onnx.is_in_onnx_export():
        return torch.contiguous_format
    channels_last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return channels_last if x.is_contiguous(memory_format=channels_last) else torch.contiguous_format
