"""How far a result may be from float64: measured against what the plain formula loses in the same dtype."""

import torch
from torch import Tensor


def rms(x: Tensor) -> Tensor:
    return x.double().square().mean().sqrt()


def assert_as_exact_as_plain(fast: Tensor, plain: Tensor, exact: Tensor, factor: float = 2.0) -> None:
    """The error of `fast` is at most `factor` times that of `plain`, both against `exact`, or a tenth of rounding."""
    floor = 0.1 * torch.finfo(fast.dtype).eps * rms(exact)
    error, allowed = rms(fast.double() - exact), factor * rms(plain.double() - exact) + floor
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"
