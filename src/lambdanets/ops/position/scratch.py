"""Reused buffers for intermediate results on CPU, which avoid the page faults of new allocations."""

import math
import threading

import torch
from torch import Tensor

# Larger results are newly allocated: their page faults cost little compared with the computation.
_MAX_BYTES = 16 << 20


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[tuple[str, torch.dtype], Tensor] = {}


_BUFFERS = _Buffers()


def scratch(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialized contiguous tensor with the dtype and device of `like`.

    It is valid until the same thread requests the same name again, so results returned to callers must not share its
    memory.
    """
    size = math.prod(shape)
    if like.device.type != "cpu" or type(like) is not Tensor or size * like.itemsize > _MAX_BYTES:
        return like.new_empty(shape)
    key = (name, like.dtype)
    buffer = _BUFFERS.by_name.get(key)
    if buffer is None or buffer.numel() < size:
        with torch.inference_mode(False):  # an inference tensor could not be written to later
            buffer = torch.empty(size, dtype=like.dtype, device="cpu")
        _BUFFERS.by_name[key] = buffer
    return buffer[:size].view(shape)


def contiguous(name: str, x: Tensor) -> Tensor:
    """Return x if it is contiguous, or else a contiguous copy in scratch memory."""
    return x if x.is_contiguous() else scratch(name, tuple(x.shape), x).copy_(x)
