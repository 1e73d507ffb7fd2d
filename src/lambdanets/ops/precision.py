"""Which dtype an operation computes in, and which it returns."""

import torch
from torch import Tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def in_common_precision(**tensors: Tensor | None) -> tuple[list[Tensor | None], torch.dtype]:
    """The tensors in the dtype to compute in, and the dtype to return.

    Outside autocast all must share one floating dtype, which is returned; float16 is computed in float32, because
    sums over hundreds of positions leave its range. Under bfloat16 autocast everything is bfloat16; under float16
    autocast the operation computes in and returns float32, as softmax and the losses do.
    Raises ValueError, naming the argument, where dtypes differ or are not floating.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(given.items()))
    for name, tensor in given.items():
        if tensor.dtype not in FLOATING:
            raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    device = first.device.type
    if device != "meta" and torch.is_autocast_enabled(device) and torch.float64 not in {t.dtype for t in given.values()}:
        autocast = torch.get_autocast_dtype(device)
        compute = returned = torch.float32 if autocast == torch.float16 else autocast
    else:
        for name, tensor in given.items():
            if tensor.dtype != first.dtype:
                raise ValueError(
                    f"{name} must have the dtype of {first_name}, {first.dtype}, outside autocast; got {tensor.dtype}"
                )
        returned = first.dtype
        compute = torch.float32 if returned == torch.float16 else returned
    return [None if tensor is None else tensor.to(compute) for tensor in tensors.values()], returned
