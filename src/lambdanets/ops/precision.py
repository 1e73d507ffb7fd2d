"""Compute and result dtypes of operations."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of autocast on the device, or None where it is off."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context manager that disables autocast on the device; the meta device has no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def without_tf32_convolutions(device: torch.device) -> AbstractContextManager[Any]:
    """A context manager that disables TF32 in cuDNN's float32 convolutions, PyTorch's default on GPUs."""
    return _ieee_convolutions() if device.type == "cuda" else nullcontext()


_ieee_lock = threading.Lock()
_ieee_threads: list[str] = []  # the initial setting, once per thread inside; the last one restores it


@contextmanager
def _ieee_convolutions() -> Iterator[None]:
    settings = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # PyTorch's stubs lack it
    with _ieee_lock:
        _ieee_threads.append(_ieee_threads[0] if _ieee_threads else settings.fp32_precision)
        settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _ieee_lock:
            initial = _ieee_threads.pop()
            if not _ieee_threads:
                settings.fp32_precision = initial


def compute_and_result_dtype(**tensors: Tensor | None) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in and the dtype to return, for an operation's named inputs; None is skipped.

    Outside autocast all must share one floating dtype, the result dtype; float16 is computed in float32, because
    sums over hundreds of positions exceed its range. Under bfloat16 autocast everything is bfloat16; under float16
    autocast the operation computes in and returns float32, as softmax and the losses do.
    Raises ValueError, naming the argument, where dtypes differ or are not floating.
    """
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(present.items()))
    for name, tensor in present.items():
        if tensor.dtype not in FLOATING:
            raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    autocast = autocast_dtype(first.device)
    if autocast is not None and all(tensor.dtype != torch.float64 for tensor in present.values()):
        dtype = torch.float32 if autocast == torch.float16 else autocast
        return dtype, dtype
    for name, tensor in present.items():
        if tensor.dtype != first.dtype:
            raise ValueError(
                f"{name} must have the dtype of {first_name}, {first.dtype}, outside autocast; got {tensor.dtype}"
            )
    return torch.float32 if first.dtype == torch.float16 else first.dtype, first.dtype


def output_dtype(dtype: torch.dtype) -> torch.dtype:
    """The output dtype of the position interaction by input dtype: float32 for float16, whose range sums exceed."""
    return torch.float32 if dtype == torch.float16 else dtype


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and exponentials: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def root_or_one(squares: Tensor) -> Tensor:
    """The square root of a sum of squares, 1 where that is 0: then division keeps zeros, and gradients are finite."""
    return torch.where(squares > 0, squares, 1).sqrt()
