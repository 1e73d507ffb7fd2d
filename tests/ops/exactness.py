"""Error budgets: the error of a result compared with that of the reference implementation in the same dtype."""

import torch
from torch import Tensor


def rms(x: Tensor) -> Tensor:
    return x.double().square().mean().sqrt()


def assert_error_within_budget(
    result: Tensor, reference: Tensor, exact: Tensor, factor: float = 2.0, name: str = "the result"
) -> None:
    """Assert that the RMS error is at most `factor` times that of `reference`, or a tenth of the rounding error.

    reference: result of the reference implementation in the same dtype. exact: result in float64.
    """
    floor = 0.1 * torch.finfo(result.dtype).eps * rms(exact)
    error, budget = rms(result.double() - exact), factor * rms(reference.double() - exact) + floor
    assert error <= budget, f"error of {name} must be at most {budget:.3g}, got {error:.3g}"
