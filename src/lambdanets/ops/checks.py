"""Argument checks, whose errors name the argument, the expected value and the actual value."""

from collections.abc import Mapping
from typing import Any

import torch


def check_tensors(optional: Mapping[str, Any] | None = None, **tensors: Any) -> None:
    """Raise ValueError unless all are tensors on the same device; `optional` ones may be None."""
    tensors |= {name: x for name, x in (optional or {}).items() if x is not None}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(tensor).__name__}")
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.device != first.device:
            raise ValueError(f"{name} must be on the device of {first_name}, {first.device}, got {tensor.device}")


def check_flags(**flags: Any) -> None:
    """Raise ValueError unless every argument is True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be True or False, got {flag!r}")


def check_sizes(**sizes: Any) -> None:
    """Raise ValueError unless every argument is an integer of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int | torch.SymInt) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {size!r}")
