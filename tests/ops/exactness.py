"""Error budgets against float64, relative to the error of the plain formula in the same dtype."""

import torch
from torch import Tensor


def rms(x: Tensor) -> Tensor:
    return x.double().square().mean().sqrt()


def assert_error_within_budget(fast: Tensor, plain: Tensor, exact: Tensor, factor: float = 2.0, what: str = "") -> None:
    """The RMS error of `fast` is at most `factor` times that of `plain`, or a tenth of the rounding error."""
    floor = 0.1 * torch.finfo(fast.dtype).eps * rms(exact)
    error, allowed = rms(fast.double() - exact), factor * rms(plain.double() - exact) + floor
    assert error <= allowed, f"{what or 'the result'} has an error of {error:.3g}, allowed are {allowed:.3g}"
