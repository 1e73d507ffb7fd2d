"""Fused kernels, which materialize neither embeddings of pairs nor lambdas in global memory.

The output and the gradients of queries and table are computed in the order of the definition:
lambda = E V in registers and then y = q lambda or dq = g lambda; the table's gradient from that of
the lambdas, q g. That is k v multiply-adds per pair (n, m), in one large product. The values'
gradient is in the query order: logits S = q E and then S g, h (k + v) multiply-adds per pair. Sums
are in float32; an intermediate result between two products is rounded to the input dtype. There is
no autotuning, so the same problem on the same device is always summed in the same order.
"""

import importlib.util
import itertools
import math
import os

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.algorithm import (
    Algorithm,
    Cost,
    Derivatives,
    Factors,
    Inputs,
    Needs,
    Prepared,
    Problem,
    grad_of_content,
)
from lambdanets.ops.position.fused_sizes import (
    VECTOR_BYTES,
    K,
    choose_constants,
    choose_table_grid,
    choose_tile_shape,
    max_value_channels,
)
from lambdanets.ops.precision import product_dtype
from lambdanets.ops.tables import pad_axis

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
_MAX_HEADS, _MAX_TILE = 16, 64
_MAX_INDEX = 2**31  # positions and table elements are indexed with 32 bits

# Functions in `fused_kernels`; the gradients in the order of the factors.
KERNELS = {
    "forward": "forward_or_grad_queries",
    "grad_queries": "forward_or_grad_queries",
    "grad_table": "grad_table",
    "grad_values": "grad_values",
}


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels; to be set before Triton is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def gpu_capability(device: str) -> tuple[int, int] | None:
    """Return the compute capability of a device that supports the kernels, or None.

    Triton's interpreter supports every device, as if its compute capability were 9.0.
    """
    if not TRITON_INSTALLED:
        return None
    if is_interpreted():
        return 9, 0
    is_cuda = torch.device(device).type == "cuda" and torch.version.hip is None
    if not is_cuda or not torch.cuda.is_available():
        return None
    capability = torch.cuda.get_device_capability(device)
    return capability if capability >= (8, 0) else None


class Fused(Algorithm):
    name = "fused"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.dtype = product_dtype(problem.dtype, is_gpu=True)
        self.capability = gpu_capability(problem.device) or (0, 0)  # if unpickled elsewhere
        # Kernels compute maps, a sequence as one row, with the table that `prepare` returns.
        missing = 2 - len(problem.grid)
        self.grid, self.radius = (1,) * missing + problem.grid, (0,) * missing + problem.before
        self.sides = tuple(2 * radius + 1 for radius in self.radius)

    @classmethod
    def unsupported(cls, problem: Problem) -> str:
        table_elements = K * math.prod(side + 2 * _MAX_TILE for side in problem.scope)
        if max(problem.num_positions, table_elements) >= _MAX_INDEX:
            return "supports tables of fewer than 2^27 offsets"
        if len(problem.grid) > 2 or problem.heads > _MAX_HEADS or problem.dtype.itemsize > 4:
            return "supports grids with 1 or 2 dimensions, 1 to 16 heads and at most 32 bits"
        if gpu_capability(problem.device) is None:
            return "is for CUDA devices of compute capability 8.0 or newer, with Triton installed"
        return ""

    def cost(self) -> Cost:
        b, n, h = self.problem.batch, self.problem.num_positions, self.problem.heads
        k, v, u = self.problem.query_depth, self.problem.value_depth, self.problem.intra_depth
        itemsize, offsets = self.dtype.itemsize, math.prod(self.sides)
        constants = choose_constants("grad_table", self.capability, itemsize, b, h, v)
        tile, examples, step = (constants[name] for name in ("TILE", "EXAMPLES", "STEP"))
        programs, _, _ = choose_table_grid(self.grid, self.radius, b, tile, examples, step)
        # Partial sums, the padded table, and at most one copy of each factor and result in float32.
        workspace = 4 * programs * tile * step * K + 4 * offsets * K * u * itemsize
        has_copies = self.problem.dtype != self.dtype or v % constants["VEC"]
        if has_copies or len(self._launch_slices(self.dtype)) > 1:
            workspace += 4 * b * n * (h * k + u * v + h * v)
        # No other algorithm is faster on a GPU, whatever the sizes.
        return Cost(b * n * min(n, offsets) * k * v * u, workspace, work=0)

    def fault(self) -> str:
        """The failures of the check of the kernels, which runs on first use."""
        from lambdanets.ops.position.fused_check import failures  # imports this module

        return failures(self.problem.device, self.dtype)

    def prepare(self, table: Tensor) -> Prepared:
        """Return the table, zero-padded along the first axis to be symmetric if it is causal."""
        missing = self.problem.before[0] - self.problem.after[0]
        return (pad_axis(table, 0, 0, missing) if missing else table,)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        return grad_prepared[0].narrow(0, 0, self.problem.scope[0])

    def derive(self, grad_output: Tensor | None, inputs: Inputs, needs: Needs) -> Derivatives:
        queries, (table,), values, content = inputs
        factors = queries, table, values, content
        output, grad_queries, grad_table, grad_values = (
            self.run(kernel, factors, grad_output) if needed else None
            for kernel, needed in zip(KERNELS, needs[:4], strict=True)
        )
        grad_content = grad_of_content(queries, grad_output) if needs.content else None
        return output, grad_queries, None if grad_table is None else (grad_table,), grad_values, grad_content

    def run(self, kernel: str, factors: Factors, grad_output: Tensor | None = None) -> Tensor:
        """Return the result of a kernel in the dtype of the factors.

        Several launches, for slices of query depth k and value channels v and each intra-depth u,
        are added in float32.
        """
        queries, table, values, content = factors
        shapes = ((*queries.shape[:3], values.shape[2]), queries.shape, table.shape, values.shape)
        shape, slices = dict(zip(KERNELS, shapes, strict=True))[kernel], self._launch_slices(values.dtype)

        def launch(k: slice, v: slice, u: int, dtype: torch.dtype) -> Tensor:
            q, c = queries[..., k], content[:, k, v] if content is not None and u == 0 else None
            a = q if grad_output is None or kernel == "forward" else grad_output[..., v]
            return self._launch(kernel, dtype, a, q, table[..., k, u], values[:, :, v, u], c)

        with torch.cuda.device_of(values):  # Triton launches on the current device
            if len(slices) == 1:
                return launch(*slices[0], values.dtype).reshape(shape).to(values.dtype)
            total = values.new_zeros(shape, dtype=torch.float32)
            for k, v, u in slices:
                indices = (..., v), (..., k), (..., k, u), (..., v, u)
                view = total[dict(zip(KERNELS, indices, strict=True))[kernel]]
                view += launch(k, v, u, torch.float32).reshape(view.shape)
        return total.to(values.dtype)

    def _launch_slices(self, dtype: torch.dtype) -> list[tuple[slice, slice, int]]:
        """Return slices of query depth and value channels, and the intra-depth, of each launch."""
        width = max_value_channels(dtype.itemsize)
        depths = [slice(first, first + K) for first in range(0, self.problem.query_depth, K)]
        channels = [slice(first, first + width) for first in range(0, self.problem.value_depth, width)]
        return list(itertools.product(depths, channels, range(self.problem.intra_depth)))

    def _launch(
        self, kernel: str, dtype: torch.dtype, a: Tensor, q: Tensor, r: Tensor, v: Tensor, c: Tensor | None
    ) -> Tensor:
        """Launch a kernel; the result has the dtype, or float32 for the table, a sum over positions.

        a: queries or grad_output (b, h, n, v). q: queries (b, h, n, k) with k <= K. r: table
        (r_1..r_D, k). v: values (b, n, v). c: content (b, k, v). Results are contiguous as
        (b, n, h, v), (b, n, h, k) or (r_1, r_2, k).
        """
        from lambdanets.ops.position import fused_kernels  # imports Triton

        (b, h, n, depth), channels = q.shape, v.shape[2]
        constants = choose_constants(kernel, self.capability, v.dtype.itemsize, b, h, channels)
        if kernel == "grad_table":
            return self._launch_table(constants, a, q, v)
        shape = choose_tile_shape(self.grid, self.radius, constants["TILE"], constants["STEP"])
        sizes, parts = (*self.grid, b, channels), (*shape[:2], constants["EXAMPLES"], constants["V"])
        programs = math.prod(-(-size // part) for size, part in zip(sizes, parts, strict=True))
        # by the size of a tile minus 1 on each side, and from k to K
        padding = (0, K - depth, shape[1] - 1, shape[1] - 1, shape[0] - 1, shape[0] - 1)
        table = F.pad(r.reshape(*self.sides, depth), padding).contiguous()
        if kernel == "grad_values":
            inputs, output = [a, q], _empty_aligned(v, (b, n, channels), dtype)
        else:
            constants["CONTENT"] = c is not None
            if c is None:
                c = v[:, :1]  # kernels need a pointer, which they do not read
            elif depth % constants["VEC"]:
                c = F.pad(c, (0, 0, 0, -depth % constants["VEC"]))  # queries are loaded in vectors
            width = channels if kernel == "forward" else depth
            inputs, output = [a, v, c], _empty_aligned(v, (b, n, h, width), dtype).transpose(1, 2)
        arguments = self._arguments(table, [*map(_align_rows, inputs), output], q, v)
        getattr(fused_kernels, KERNELS[kernel])[(programs,)](*arguments, *shape, **constants)
        return output

    def _launch_table(self, constants: dict[str, int], g: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """Compute the gradient of the table (r_1, r_2, k), by partial sums."""
        from lambdanets.ops.position.fused_kernels import grad_table, reduce_grad_table

        tile, examples, step, depth = constants["TILE"], constants["EXAMPLES"], constants["STEP"], q.shape[3]
        programs, splits, sizes = choose_table_grid(self.grid, self.radius, len(q), tile, examples, step)
        partial = v.new_empty(programs, tile, step, K, dtype=torch.float32)
        arguments = self._arguments(partial, [*map(_align_rows, (g, q, v))], q, v)
        grad_table[(programs,)](*arguments, *sizes, **constants)
        output = v.new_empty(*self.sides, depth, dtype=torch.float32)
        arguments = [partial, output, depth, self.grid[1], self.radius[1], *sizes[:4], splits]
        programs = math.prod(self.sides)
        reduce_grad_table[(programs,)](*arguments, TILE=tile, STEP=step, K=K, LOADS=8, num_warps=4)
        return output

    def _arguments(self, first: Tensor, operands: list[Tensor], q: Tensor, v: Tensor) -> list[Tensor | int]:
        """Return the arguments of a kernel up to the radius of the table; strides and depths are in vectors."""
        (batch, heads, _, depth), vec_size = q.shape, VECTOR_BYTES // v.dtype.itemsize
        strides = [stride // vec_size for x in operands for stride in x.stride()[:-1]]
        depths = -(-v.shape[2] // vec_size), -(-depth // vec_size)
        return [first, *operands, *strides, *depths, batch, heads, *self.grid, *self.radius]


def _empty_aligned(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a new tensor of this shape, whose rows are padded to whole vectors of `like`."""
    padding = -shape[-1] % (VECTOR_BYTES // like.dtype.itemsize)
    return like.new_empty(*shape[:-1], shape[-1] + padding, dtype=dtype)[..., : shape[-1]]


def _align_rows(x: Tensor) -> Tensor:
    """Return x, or a copy with contiguous, aligned rows that are zero-padded to whole vectors."""
    vec_size = VECTOR_BYTES // x.dtype.itemsize
    if x.shape[-1] % vec_size:
        return F.pad(x, (0, -x.shape[-1] % vec_size)).contiguous()
    strides = zip(x.stride()[:-1], x.shape, strict=False)
    aligned = all(stride % vec_size == 0 or size == 1 for stride, size in strides)
    if x.stride(-1) == 1 and aligned and x.data_ptr() % VECTOR_BYTES == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)
