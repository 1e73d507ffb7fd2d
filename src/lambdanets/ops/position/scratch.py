"""Memory for intermediate results on CPU that is used again, in place of pages fresh from the system at each call."""

import math
import threading

import torch
from torch import Tensor

# A larger result is allocated anew: there the fresh pages cost little beside the work, and keeping them much.
_KEPT_BYTES = 16 << 20


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[tuple[str, torch.dtype], Tensor] = {}


_BUFFERS = _Buffers()


def scratch(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialised contiguous tensor with the dtype and device of another.

    It holds until the same thread asks for the name again: what is returned to a caller must not share its memory.
    """
    size = math.prod(shape)
    if like.device.type != "cpu" or type(like) is not Tensor or size * like.itemsize > _KEPT_BYTES:
        return like.new_empty(shape)
    key = (name, like.dtype)
    buffer = _BUFFERS.by_name.get(key)
    if buffer is None or buffer.numel() < size:
        with torch.inference_mode(False):  # else it could not be written to outside of it
            buffer = torch.empty(size, dtype=like.dtype)
        _BUFFERS.by_name[key] = buffer
    return buffer[:size].view(shape)


def packed(name: str, x: Tensor) -> Tensor:
    """x if it is contiguous, else a contiguous copy in scratch memory of that name."""
    return x if x.is_contiguous() else scratch(name, tuple(x.shape), x).copy_(x)
