"""Lambda convolution (Sec. 3.4) with v folded into the batch: an n-d convolution for n-d data, never n+1.

lambda[(b v),k,:] = conv(V[(b v),u,:], R[k,u,r]): the value channels share the weights, so they ride in the batch.
Cost: n k u v b prod(r) multiply-adds; nothing of size n m. For small scopes.

The paper's two other forms of the same linear map, `depthwise_convolution` and `value_axis_convolution`, differ in
the forward pass alone and share the gradients written here.
"""

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.problem import Cost, Prepared, Problem, Wanted
from lambdanets.ops.position.rates import Rates

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_LAMBDA_BYTES = 64 << 20, 256 << 20  # on a core, on a GPU

# maps (b, v, u, S..) padded with zeros and weights (k, u, r..) -> lambdas (b, v, k, S..)
Form = Callable[[Tensor, Tensor], Tensor]


def operations(problem: Problem) -> int:
    """Floating-point operations of a forward pass, two per multiply-add."""
    return 2 * problem.lambda_elements * problem.intra_depth * math.prod(problem.scope) + problem.apply_operations


def cost(problem: Problem, rates: Rates) -> Cost:
    """Predicted cost of `forward` and `backward`."""
    p = problem
    at_once = min(p.batch, examples_at_once(p, rates))
    passes = -(-p.batch // at_once)
    offsets, lambdas = math.prod(p.scope), at_once * p.positions * p.query_depth * p.value_depth
    # with few channels a direct convolution is slower than the product it stands for
    convolved = 1.5 * rates.product(1, at_once * p.value_depth * p.positions, offsets * p.intra_depth, p.query_depth)
    applied = rates.product(p.positions * at_once, p.heads, p.query_depth, p.value_depth)
    copied = rates.copy(8.0 * lambdas)
    rows = math.prod(p.scope[:-1])
    gathered = rates.copy(4.0 * rows * at_once * p.value_depth * p.positions * p.scope[-1] * p.intra_depth)
    # the backward pass scatters each query depth by itself, over the grid and what the table reaches beyond it
    reached = zip(p.grid, p.before, p.after, strict=True)
    padded = math.prod(side + before + after for side, before, after in reached)
    scattered = 2 * at_once * p.value_depth * p.query_depth * p.intra_depth * padded
    return Cost(
        operations=operations(p),
        workspace_bytes=max(4, p.dtype.itemsize) * (2 * lambdas + scattered),
        seconds=passes * (convolved + applied + copied + rates.calls(10)),
        backward_seconds=passes
        * (
            5 * convolved + 2 * applied + 2 * copied + gathered + rates.copy(4.0 * lambdas) + rates.calls(20 + 6 * rows)
        ),
    )


def examples_at_once(problem: Problem, rates: Rates) -> int:
    """As many as have lambdas of a moderate size."""
    example_bytes = 4 * problem.positions * problem.query_depth * problem.value_depth
    return max(1, problem.within_cache(*_LAMBDA_BYTES) // example_bytes)


def prepare(table: Tensor, problem: Problem, rates: Rates) -> Prepared:
    """Weights (k, u, r_1..r_D)."""
    return (table.movedim((-2, -1), (0, 1)).contiguous(),)


def gradient_of_table(gradients: Prepared, problem: Problem, rates: Rates) -> Tensor:
    """The table's gradient from that of the weights."""
    return gradients[0].movedim((0, 1), (-2, -1))


def forward(queries: Tensor, prepared: Prepared, values: Tensor, problem: Problem, rates: Rates) -> Tensor:
    """queries (b, h, n, k), values (b, n, v, u) -> (b, h, n, v)."""
    return forward_in_form(_values_in_the_batch, queries, prepared, values, problem)


def backward(
    gradient: Tensor,
    queries: Tensor,
    prepared: Prepared,
    values: Tensor,
    problem: Problem,
    wanted: Wanted,
    rates: Rates,
) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
    """Gradients of queries, weights and values from that of the output (b, h, n, v); the lambdas are computed again.

    PyTorch's own gradients of a convolution add up k or batch and positions one by one on CPU, so that their error
    grows to ten times that of the plain formula; here each query depth and each map is summed by itself first.
    """
    (weights,) = prepared
    maps = _padded_maps(values, problem)
    of_queries = of_weights = of_values = None
    if wanted.queries:
        lambdas = _values_in_the_batch(maps, weights)
        of_queries = torch.einsum("bhnv,bvkn->bhnk", gradient, lambdas.flatten(3))
    if wanted.table or wanted.values:
        of_lambdas = torch.einsum("bhnk,bhnv->bvkn", queries, gradient).unflatten(3, problem.grid).flatten(0, 1)
        if wanted.table:
            of_weights = (_correlate(of_lambdas, maps.flatten(0, 1), problem.scope),)
        if wanted.values:
            of_maps = _convolve_back(of_lambdas, weights)
            for i, (before, side) in enumerate(zip(problem.before, problem.grid, strict=True), 2):
                of_maps = of_maps.narrow(i, before, side)
            of_values = of_maps.unflatten(0, (-1, problem.value_depth)).flatten(3).permute(0, 3, 1, 2)
    return of_queries, of_weights, of_values


def forward_in_form(form: Form, queries: Tensor, prepared: Prepared, values: Tensor, problem: Problem) -> Tensor:
    """`forward` with the lambdas computed by the form given."""
    lambdas = form(_padded_maps(values, problem), prepared[0])
    return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas.flatten(3))


def _padded_maps(values: Tensor, problem: Problem) -> Tensor:
    """(b, n, v, u) to (b, v, u, S..) with zeros where the table reaches beyond the grid."""
    maps = values.permute(0, 2, 3, 1).unflatten(3, problem.grid)
    padding = zip(reversed(problem.before), reversed(problem.after), strict=True)
    return F.pad(maps, [entries for pair in padding for entries in pair])


def _values_in_the_batch(maps: Tensor, weights: Tensor) -> Tensor:
    lambdas = CONVOLUTIONS[maps.ndim - 3](maps.flatten(0, 1), weights)
    return lambdas.unflatten(0, maps.shape[:2])


def _convolve_back(gradient: Tensor, weights: Tensor) -> Tensor:
    """(B, k, S..) and (k, u, r..) to (B, u, padded..): the transposed convolution for each k alone, then their sum."""
    k, u = weights.shape[:2]
    parts = _TRANSPOSED[gradient.ndim - 2](gradient, weights, groups=k)
    return parts.unflatten(1, (k, u)).sum(dim=1)


def _correlate(gradient: Tensor, padded: Tensor, scope: tuple[int, ...]) -> Tensor:
    """sum over batch and positions of gradient (B, k, S..) times maps (B, u, padded..) moved by each offset."""
    grid = gradient.shape[2:]
    rows = gradient.flatten(2)  # (B, k, n)
    parts = []
    for offsets in itertools.product(*(range(side) for side in scope[:-1])):
        moved = padded
        for axis, offset in enumerate(offsets):
            moved = moved.narrow(axis + 2, offset, grid[axis])
        shifted = moved.unfold(moved.ndim - 1, grid[-1], 1)  # (B, u, S.., r_D, S_D)
        columns = shifted.movedim((1, -2), (-2, -1)).flatten(1, -3).flatten(2)  # (B, n, u r_D)
        parts.append((rows @ columns).sum(dim=0).unflatten(1, (padded.shape[1], scope[-1])))
    return torch.stack(parts, dim=2).unflatten(2, scope[:-1]) if len(scope) > 1 else parts[0]
