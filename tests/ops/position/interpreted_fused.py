"""Runs the fused kernels in Triton's interpreter and prints as JSON what the tests look at.

A process of its own, because TRITON_INTERPRET=1 must be set before Triton is imported. Every input lies in a larger
tensor full of NaN, and every new tensor is full of NaN until it is written.
"""

import json

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode

from lambdanets import LambdaLayer2d, position_interaction
from lambdanets.ops.position.fused import launches
from lambdanets.ops.position.fused.forward_kernels import SIZES, STRIDES, far
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


class Storages(TorchDispatchMode):
    """The storages of all tensors of a shape's size that operators return, and of a dtype."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.size, self.dtype, self.found = size, dtype, set()

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        result = operator(*arguments, **(options or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor) and x.numel() == self.size and x.dtype == self.dtype:
                self.found.add(x.untyped_storage().data_ptr())
        return result


def storages_of_outputs(dtype: torch.dtype) -> dict[str, int]:
    """How many tensors of the size of y a layer makes in the forward pass and, g among them, in the backward pass."""
    torch.manual_seed(0)
    layer = LambdaLayer2d(48, 96, scope=5, heads=4, query_depth=8, algorithm="fused").to(dtype)
    x = torch.randn(3, 48, 6, 7, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    with Storages(3 * 96 * 6 * 7, dtype) as forward:
        y = layer(x)
    gradient = torch.randn_like(y)
    with Storages(y.numel(), dtype) as backward:
        torch.autograd.grad(y, [x, *layer.parameters()], gradient)
    return {"forward": len(forward.found), "backward": len(backward.found)}


@triton.jit(do_not_specialize=SIZES + STRIDES)
def offset_of_last(out_ptr, batch, heads, height, width, q_b_stride, q_h_stride, q_n_stride, UNIT: tl.constexpr):  # noqa: N803
    last = tl.full((1,), 1, tl.int32)
    offset = far(last * (batch - 1), q_b_stride, UNIT) + far(last * (heads - 1), q_h_stride, UNIT)
    offset += far(last * (height - 1) * width + (width - 1), q_n_stride, UNIT)
    tl.store(out_ptr + tl.arange(0, 1), offset)


def offsets() -> list[tuple[int, int]]:
    """Offsets of the last row of large outputs, as kernels compute them from the launchers' strides, and true ones."""
    found = []
    for side in (1024, 1056, 2048, 4096):
        for batch, heads, depth in ((1, 4, 64), (8, 4, 64), (256, 4, 128), (256, 16, 16)):
            x = torch.empty(batch, side * side, heads, depth, dtype=torch.bfloat16, device="meta").transpose(1, 2)
            out = torch.zeros(1, dtype=torch.int64)
            unit = launches.UNIT_BYTES // x.dtype.itemsize
            offset_of_last[(1,)](out, batch, heads, side, side, *launches.strides_of(x, unit), UNIT=unit)
            found.append((out.item(), x.numel() - depth))
    return found


def error_of_large_table_gradient() -> float:
    """Of float16 queries and values under a float32 table, where the table's gradient leaves float16."""
    generator = torch.Generator().manual_seed(0)
    queries, values = (torch.rand(shape, generator=generator).half() for shape in ((4, 2, 20, 16), (4, 20, 16)))
    table = torch.rand(3, 3, 16, generator=generator, requires_grad=True)
    results = []
    for algorithm in ("fused", "lambda_order"):
        with torch.autocast("cpu", torch.float16):
            y = position_interaction(queries, table, values, (4, 5), algorithm=algorithm)
        assert y.dtype == torch.float32
        results.append(torch.autograd.grad(y, table, torch.full_like(y, 300.0))[0].double())
    assert results[1].abs().max() > torch.finfo(torch.float16).max
    return ((results[0] - results[1]).norm() / results[1].norm()).item()


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    results = {
        "errors": {name: errors(*case) for name, case in CASES.items()},
        "storages": storages_of_outputs(torch.float32),
        "offsets": offsets(),
        "large table gradient": error_of_large_table_gradient(),
    }
    print(json.dumps(results))
