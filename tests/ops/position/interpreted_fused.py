"""Runs the fused kernels in Triton's interpreter and prints results for the tests as JSON.

This script runs in a subprocess, because TRITON_INTERPRET=1 must be set before Triton is imported. Inputs are slices of
larger tensors of NaN, and new tensors are filled with NaN.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode

from lambdanets import LambdaLayer2d, plan, position_interaction
from lambdanets.ops.position import fused_check
from lambdanets.ops.position.fused import KERNELS, VECTOR_BYTES
from lambdanets.ops.position.fused_check import Case, make_example, run_kernel
from lambdanets.ops.position.fused_kernels import kernel, offset64

CASES = {
    "ragged tiles": (torch.float16, Case(3, 2, (7, 9), (5, 5), 16, 16)),
    "wide values, one head": (torch.float16, Case(3, 1, (5, 6), (3, 5), 16, 128)),
    "five heads, odd depths": (torch.float16, Case(3, 5, (4, 9), (5, 3), 10, 20)),
    "one position": (torch.float16, Case(2, 4, (1, 1), (1, 1), 16, 16)),
    **{f"check {i}": ((torch.float16, torch.float32)[i % 2], case) for i, case in enumerate(fused_check.CASES)},
}


def with_large_strides(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of x, in a sparse file, whose batch stride is 2^31 elements."""
    stride = 2**31
    size = (x.shape[0] - 1) * stride + x[0].numel()
    strides = stride, *torch.empty(x.shape[1:], device="meta").stride()
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(size * x.itemsize)
        memory = torch.from_file(file.name, shared=True, size=size, dtype=x.dtype)
    return memory.as_strided(x.shape, strides).copy_(x)


def errors(dtype: torch.dtype, case: Case, large_strides: bool = False) -> dict[str, float]:
    """Return ||result - exact|| / ||exact|| by kernel."""
    example = make_example(case, dtype, "cpu")
    if large_strides:
        queries, table, values, content = example.factors
        factors = (with_large_strides(queries), table, with_large_strides(values), with_large_strides(content))
        example = example._replace(factors=factors, grad_output=with_large_strides(example.grad_output))
    error_by_kernel = {}
    for name in KERNELS:
        result, exact = run_kernel(name, example), example.exact[KERNELS[name].result]
        assert result.dtype == dtype
        error_by_kernel[name] = ((result.double() - exact).norm() / exact.norm()).item()
    return error_by_kernel


class StorageRecorder(TorchDispatchMode):
    """Records storages of the returned tensors with this size and dtype, and counts in-place writes to them."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.size, self.dtype, self.storages, self.writes = size, dtype, set(), 0

    def matches(self, x) -> bool:
        return isinstance(x, torch.Tensor) and x.numel() == self.size and x.dtype == self.dtype

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        result = operator(*arguments, **(options or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if self.matches(x):
                self.storages.add(x.untyped_storage().data_ptr())
        schema = operator._schema.arguments
        self.writes += sum(
            self.matches(x) and argument.is_write and operator.__name__ != "set_.source_Storage_storage_offset"
            for argument, x in zip(schema, arguments, strict=False)
        )
        return result


def count_output_storages(dtype: torch.dtype) -> dict[str, int]:
    """Count the tensors with the size of the output in forward and backward pass, and in-place writes to them."""
    torch.manual_seed(0)
    layer = LambdaLayer2d(48, 96, scope=5, heads=4, query_depth=8, algorithm="fused").to(dtype)
    x = torch.randn(3, 48, 4, 5, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    with StorageRecorder(3 * 96 * 4 * 5, dtype) as forward:
        y = layer(x)
    grad_output = torch.randn_like(y)
    with StorageRecorder(y.numel(), dtype) as backward:
        torch.autograd.grad(y, [x, *layer.parameters()], grad_output)
    return {
        "forward": len(forward.storages),
        "backward": len(backward.storages),
        "writes": forward.writes + backward.writes,
    }


@kernel
def last_row_offset(out_ptr, batch, heads, height, width, q_b_stride, q_h_stride, q_n_stride, VEC: tl.constexpr):  # noqa: N803
    one = tl.full((1,), 1, tl.int32)
    offset = offset64(one * (batch - 1), q_b_stride, VEC) + offset64(one * (heads - 1), q_h_stride, VEC)
    offset += offset64(one * (height - 1) * width + (width - 1), q_n_stride, VEC)
    tl.store(out_ptr + tl.arange(0, 1), offset)


def last_row_offsets() -> list[tuple[int, int]]:
    """Return actual offsets of the last row of large outputs, computed by kernels, and expected offsets."""
    offsets = []
    for side in (1024, 1056, 2048, 4096):
        for batch, heads, depth in ((1, 4, 64), (8, 4, 64), (256, 4, 128), (256, 16, 16)):
            x = torch.empty(batch, side * side, heads, depth, dtype=torch.bfloat16, device="meta").transpose(1, 2)
            out = torch.zeros(1, dtype=torch.int64)
            vec_size = VECTOR_BYTES // x.dtype.itemsize
            strides = [stride // vec_size for stride in x.stride()[:-1]]
            last_row_offset[(1,)](out, batch, heads, side, side, *strides, VEC=vec_size)
            offsets.append((out.item(), x.numel() - depth))
    return offsets


def automatic_choice() -> dict[str, Any]:
    """The algorithm of "auto" after the check of a small case, the reasons that it stores, and the output's error."""
    fused_check.CASES = (Case(1, 2, (2, 3), (3, 3), 16, 16),)
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, 9, 16), (5, 5, 16), (1, 9, 16)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAMBDANETS_CACHE"] = folder
        algorithm = plan(*inputs, (3, 3)).algorithm
        (reasons,) = json.loads(Path(folder, "kernels.json").read_text()).values()
    y, exact = (position_interaction(*inputs, (3, 3), algorithm=name) for name in ("auto", "query_order"))
    return {"algorithm": algorithm, "reasons": reasons, "error": ((y - exact).norm() / exact.norm()).item()}


def large_table_gradient_error() -> float:
    """Return the relative error of a table gradient beyond the range of float16, with float16 queries and values."""
    generator = torch.Generator().manual_seed(0)
    queries, values = (torch.rand(shape, generator=generator).half() for shape in ((4, 2, 20, 16), (4, 20, 16)))
    table = torch.rand(3, 3, 16, generator=generator, requires_grad=True)
    results = []
    for algorithm in ("fused", "query_order"):
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
        "storages": count_output_storages(torch.float32),
        "large strides": {
            str(dtype): errors(dtype, Case(2, 4, (3, 4), (3, 3), 16, 16, content=True), large_strides=True)
            for dtype in (torch.float16, torch.float32)
        },
        "offsets": last_row_offsets(),
        "large table gradient": large_table_gradient_error(),
        "auto": automatic_choice(),
    }
    print(json.dumps(results))
