"""The dtypes in which operations in PyTorch compute and return results.

| inputs | factors of matrix products | sums, exponentials | results |
|---|---|---|---|
| float64, float32 | the same | the same | the same |
| bfloat16 | float32; bfloat16 on GPUs, if they are large | float32 | bfloat16 |
| float16 | float32 | float32 | float16; float32 under autocast |

The compiled kernels (native/libraries.py, fused_kernels.py) sum in float32 or float64. In the content
term of a softmax, and in exported graphs, the factors of bfloat16 stay in it.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the autocast dtype for the device, or None if autocast is disabled."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context manager in which autocast is disabled on the device."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def compute_and_result_dtype(**tensors: Tensor | None) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype in which an operation on these named inputs computes, and the dtype of its result.

    Outside autocast all inputs must have the same floating dtype, which is the result dtype. float16 inputs are
    computed in float32, because sums over hundreds of positions exceed the range of float16. Under bfloat16 autocast
    both dtypes are bfloat16; under float16 autocast both are float32, as for softmax and loss functions.
    Inputs that are None are ignored. Raises ValueError, naming the argument, if dtypes differ or are not floating.
    """
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(present.items()))
    for name, tensor in present.items():
        if tensor.dtype not in FLOATING:
            raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    autocast = autocast_dtype(first.device)
    if autocast is not None and all(tensor.dtype != torch.float64 for tensor in present.values()):
        return widen_float16(autocast), widen_float16(autocast)
    for name, tensor in present.items():
        if tensor.dtype != first.dtype:
            raise ValueError(
                f"{name} must have the dtype of {first_name}, {first.dtype}, outside autocast; got {tensor.dtype}"
            )
    return widen_float16(first.dtype), first.dtype


def widen_float16(dtype: torch.dtype) -> torch.dtype:
    """Return float32 instead of float16, whose range sums exceed; other dtypes as they are."""
    return torch.float32 if dtype == torch.float16 else dtype


def product_dtype(dtype: torch.dtype, is_gpu: bool) -> torch.dtype:
    """Return the dtype of the factors of large products: without hardware for bfloat16, it is slower than float32."""
    return widen_float16(dtype) if is_gpu else accumulation_dtype(dtype)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums and exponentials: float32, or the dtype if it is wider."""
    return torch.promote_types(dtype, torch.float32)


def sqrt_or_one(squares: Tensor) -> Tensor:
    """Return the square root, or 1 where `squares` is 0, so that dividing by it is safe and has finite gradients."""
    return torch.where(squares > 0, squares, 1).sqrt()
