"""Pooling and memory format of maps (b, channels, S_1..S_D)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def average_pool(maps: Tensor, stride: int) -> Tensor:
    """Average pooling with window side 2 stride - 1, padded but not counting the padding; sides S to ceil(S / stride).

    Strided lambda layers use it (Sec. F.2 of the paper).
    """
    window: dict[str, Any] = {
        "kernel_size": 2 * stride - 1,
        "stride": stride,
        "padding": stride - 1,
        "count_include_pad": False,
    }
    if maps.ndim < 5:
        return (F.avg_pool1d if maps.ndim == 3 else F.avg_pool2d)(maps, **window)
    # avg_pool3d raises for sides smaller than the window, so pool each slice in 2-D first, then along the depth
    slices = F.avg_pool2d(maps.flatten(1, 2), **window).unflatten(1, maps.shape[1:3])
    columns = slices.movedim(2, -1)
    pooled = F.avg_pool1d(columns.flatten(1, -2), **window).unflatten(1, columns.shape[1:-1]).movedim(-1, 2)
    return pooled.contiguous(memory_format=memory_format(maps) or torch.contiguous_format)


def memory_format(x: Tensor) -> torch.memory_format | None:
    """Return channels_last or channels_last_3d if x is in that memory format and not contiguous, else None."""
    if x.ndim in (4, 5) and not x.is_contiguous():
        channels_last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
        if x.is_contiguous(memory_format=channels_last):
            return channels_last
    return None
