"""Argument checks, whose errors name the argument, the expected value and the actual value."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.tracing import static_shape


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


def check_shape(sizes: dict[str, int], name: str, x: Tensor, *forms: str) -> None:
    """Raise ValueError unless x has the axes of one of the forms, such as "b h n k" or "1 m".

    sizes: of axes, by letter, as far as they are known; those of x are added.
    """
    shape = static_shape(x)
    for form in forms:
        axes = form.split()
        expected = [int(axis) if axis.isdigit() else sizes.get(axis) for axis in axes]
        if len(axes) == len(shape) and all(e is None or e == s for e, s in zip(expected, shape, strict=True)):
            sizes.update(zip(axes, shape, strict=True))
            return
    known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items() if axis in " ".join(forms).split())
    described = " or ".join(f"({', '.join(form.split())})" for form in forms)
    raise ValueError(f"{name} must be {described}{f' with {known}' if known else ''}, got shape {shape}")


def check_mask(sizes: dict[str, int], mask: Tensor, *forms: str) -> None:
    """`check_shape` of a mask, which must be bool."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, got {mask.dtype}")
    check_shape(sizes, "mask", mask, *forms)
