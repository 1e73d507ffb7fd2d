"""Runs the fused kernels in Triton's interpreter and prints their relative errors as JSON.

A process of its own, because TRITON_INTERPRET=1 must be set before Triton is imported. Every input lies in a larger
tensor full of NaN, and every new tensor is full of NaN until it is written.
"""

import json

import torch

from lambdanets.ops.position.fused.self_test import CASES as OF_SELF_TEST
from lambdanets.ops.position.fused.self_test import Case, make_example, run_kernel
from lambdanets.ops.position.fused.verification import kernels_of

CASES = {
    "ragged tiles": (torch.float16, Case(5, 4, (9, 11), (5, 5), 16, 16)),
    "global": (torch.float16, Case(2, 4, (14, 6), (27, 11), 16, 16)),
    "one small map": (torch.float16, Case(1, 4, (7, 7), (3, 3), 16, 32)),
    "wide values, one head": (torch.float16, Case(9, 1, (5, 6), (3, 5), 16, 128)),
    "five heads, odd depths": (torch.float16, Case(3, 5, (4, 9), (5, 3), 10, 20)),
    "several launches": (torch.float16, Case(1, 4, (3, 7), (3, 3), 32, 144, 2)),
    "one position": (torch.float16, Case(2, 4, (1, 1), (1, 1), 16, 16)),
    "ragged tiles in float32": (torch.float32, Case(5, 4, (6, 9), (5, 5), 16, 16)),
    **{f"self-test {i}": ((torch.float16, torch.float32)[i % 2], case) for i, case in enumerate(OF_SELF_TEST)},
}


def errors(dtype: torch.dtype, case: Case) -> dict[str, float]:
    """||result - exact|| / ||exact|| for both orders of the forward pass and the gradients."""
    example = make_example(case, dtype, "cpu")
    found = {}
    for kernel in kernels_of(dtype):
        result, exact, _ = run_kernel(kernel, example)
        assert result.dtype == (torch.float32 if kernel.startswith("forward") and dtype == torch.float16 else dtype)
        found[kernel] = ((result.double() - exact).norm() / exact.norm()).item()
    return found


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    print(json.dumps({name: errors(*case) for name, case in CASES.items()}))
