"""Lambda convolution (Sec. 3.4): an n-d convolution of the values with one output channel per query depth.

lambda[b,v,k,:] = conv(V[b,v,u,:], R[k,u,r]) has the same weights for every value channel v, so v is in the batch. The
paper's two implementations, with v in groups of channels or as a spatial axis, compute the same more slowly on CPUs.
Cost: n k u v b prod(r) multiply-adds, without tensors of size n m. Suitable for small scopes.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.algorithm import Algorithm, BoundPositionAlgorithm, Gradients
from lambdanets.ops.position.problem import Cost, NeedsGrad, Prepared, Problem
from lambdanets.ops.position.rates import Rates

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
# Positions per product in the table's gradient: without AVX, MKL's float32 sums over 3,136 exceed the error budget.
_MAX_TERMS = 256


class Convolution(Algorithm):
    name = "convolution"
    keeps_bfloat16 = True

    def bind(self, problem: Problem, rates: Rates) -> "BoundConvolution":
        return BoundConvolution(problem.limit_lambda_bytes())

    def cost(self, problem: Problem, rates: Rates) -> Cost:
        return _cost(problem, rates)


class BoundConvolution(BoundPositionAlgorithm):
    def prepare(self, table: Tensor) -> Prepared:
        """Return weights (k, u, r_1..r_D)."""
        return (table.movedim((-2, -1), (0, 1)).contiguous(),)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        return grad_prepared[0].movedim((0, 1), (-2, -1))

    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        lambdas = _lambdas(self._padded_maps(values), prepared[0])
        return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas.flatten(3))

    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs_grad: NeedsGrad
    ) -> Gradients:
        """Sum over each query depth and each map first, for accuracy.

        PyTorch's convolution gradients on CPU sum over k, or over batch and positions, sequentially; their errors are
        up to ten times those of the reference implementation.
        """
        p = self.problem
        (weights,) = prepared
        maps = self._padded_maps(values)
        grad_queries = grad_weights = grad_values = None
        if needs_grad.queries:
            lambdas = _lambdas(maps, weights)
            grad_queries = torch.einsum("bhnv,bvkn->bhnk", grad_output, lambdas.flatten(3))
        if needs_grad.table or needs_grad.values:
            grad_lambdas = torch.einsum("bhnk,bhnv->bvkn", queries, grad_output).unflatten(3, p.grid).flatten(0, 1)
            if needs_grad.table:
                grad_weights = (_correlate(grad_lambdas, maps.flatten(0, 1), p.scope),)
            if needs_grad.values:
                grad_maps = _transposed_convolution(grad_lambdas, weights)
                for i, (before, side) in enumerate(zip(p.before, p.grid, strict=True), 2):
                    grad_maps = grad_maps.narrow(i, before, side)
                grad_values = grad_maps.unflatten(0, (-1, p.value_depth)).flatten(3).permute(0, 3, 1, 2)
        return grad_queries, grad_weights, grad_values

    def _padded_maps(self, values: Tensor) -> Tensor:
        """Reshape (b, n, v, u) to (b, v, u, S..), zero-padded by the radius of the table."""
        p = self.problem
        maps = values.permute(0, 2, 3, 1).unflatten(3, p.grid)
        return F.pad(maps, [size for pair in zip(reversed(p.before), reversed(p.after), strict=True) for size in pair])


def _lambdas(maps: Tensor, weights: Tensor) -> Tensor:
    """Compute lambdas (b, v, k, S..) from zero-padded maps (b, v, u, S..) and weights (k, u, r..)."""
    return _CONVOLUTIONS[maps.ndim - 3](maps.flatten(0, 1), weights).unflatten(0, maps.shape[:2])


def _cost(problem: Problem, rates: Rates) -> Cost:
    p = problem.limit_lambda_bytes()
    num_calls = -(-problem.batch // p.batch)
    num_offsets, lambda_elements = math.prod(p.scope), p.lambda_elements
    # with few channels a direct convolution is slower than the equivalent matrix product
    conv_seconds = 1.5 * rates.matmul_seconds(
        1, p.batch * p.value_depth * p.num_positions, num_offsets * p.intra_depth, p.query_depth
    )
    apply_seconds = rates.matmul_seconds(p.num_positions * p.batch, p.heads, p.query_depth, p.value_depth)
    copy_seconds = rates.copy_seconds(8.0 * lambda_elements)
    num_rows = math.prod(p.scope[:-1])
    gather_seconds = rates.copy_seconds(
        4.0 * num_rows * p.batch * p.value_depth * p.num_positions * p.scope[-1] * p.intra_depth
    )
    # the backward pass scatters each query depth separately, over the padded grid
    axes = zip(p.grid, p.before, p.after, strict=True)
    padded_positions = math.prod(side + before + after for side, before, after in axes)
    scattered_elements = 2 * p.batch * p.value_depth * p.query_depth * p.intra_depth * padded_positions
    backward_seconds = 5 * conv_seconds + 2 * apply_seconds + 2 * copy_seconds + gather_seconds
    backward_seconds += rates.copy_seconds(4.0 * lambda_elements)
    return Cost(
        operations=2 * problem.lambda_elements * p.intra_depth * num_offsets + problem.apply_operations,
        workspace_bytes=max(4, p.dtype.itemsize) * (2 * lambda_elements + scattered_elements),
        seconds=num_calls * (conv_seconds + apply_seconds + copy_seconds + rates.call_overhead(10)),
        backward_seconds=num_calls * (backward_seconds + rates.call_overhead(20 + 6 * num_rows)),
    )


def _transposed_convolution(grad_output: Tensor, weights: Tensor) -> Tensor:
    """Transposed convolution for each k, then the sum over k: (B, k, S..) and (k, u, r..) to (B, u, padded..).

    bfloat16 is converted to float32 on CPU: on processors without bfloat16 instructions, PyTorch's transposed
    convolutions accumulate in bfloat16.
    """
    k, u = weights.shape[:2]
    if grad_output.device.type == "cpu" and grad_output.dtype == torch.bfloat16:
        grad_output, weights = grad_output.float(), weights.float()
    maps = _TRANSPOSED[grad_output.ndim - 2](grad_output, weights, groups=k)
    return maps.unflatten(1, (k, u)).sum(dim=1)


def _correlate(grad_lambdas: Tensor, padded_maps: Tensor, scope: tuple[int, ...]) -> Tensor:
    """Return grad_weights (k, u, r..): sums over B and S of grad_lambdas (B, k, S..) times maps shifted by each offset.

    padded_maps: (B, u, padded sides).
    """
    grid = grad_lambdas.shape[2:]
    rows = grad_lambdas.flatten(2)  # (B, k, n)
    gradients = []
    for offsets in itertools.product(*(range(side) for side in scope[:-1])):
        shifted = padded_maps
        for axis, offset in enumerate(offsets):
            shifted = shifted.narrow(axis + 2, offset, grid[axis])
        windows = shifted.unfold(shifted.ndim - 1, grid[-1], 1)  # (B, u, S.., r_D, S_D)
        columns = windows.movedim((1, -2), (-2, -1)).flatten(1, -3).flatten(2)  # (B, n, u r_D)
        pairs = zip(rows.split(_MAX_TERMS, dim=2), columns.split(_MAX_TERMS, dim=1), strict=True)
        products = torch.cat([row_part @ column_part for row_part, column_part in pairs])
        gradients.append(products.sum(dim=0).unflatten(1, (padded_maps.shape[1], scope[-1])))
    return torch.stack(gradients, dim=2).unflatten(2, scope[:-1]) if len(scope) > 1 else gradients[0]
