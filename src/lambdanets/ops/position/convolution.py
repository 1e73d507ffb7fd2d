"""Lambda convolution (Sec. 3.4) with v folded into the batch: an n-d convolution for n-d data, never n+1.

lambda[(b v),k,:] = conv(V[(b v),u,:], R[k,u,r]): the value channels share the weights, so they ride in the batch.
Cost: n k u v b prod(r) multiply-adds; nothing of size n m. For small scopes and large grids.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.problem import Cost, Problem

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def cost(problem: Problem) -> Cost:
    """Predicted cost of `interact`."""
    operations = 2 * problem.lambda_elements * problem.intra_depth * math.prod(problem.scope)
    return Cost(operations + problem.apply_operations, 2 * problem.lambda_elements * problem.dtype.itemsize)


def interact(queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v)."""
    maps = values.permute(0, 2, 3, 1).reshape(-1, problem.intra_depth, *problem.grid)
    weights = table.movedim((-2, -1), (0, 1)).contiguous()
    # torch.compile cannot trace a Function with a rule for forward mode
    function = _Convolution if torch.compiler.is_compiling() else _ForwardModeConvolution
    lambdas = function.apply(maps, weights, problem.dilation)
    lambdas = lambdas.view(problem.batch, problem.value_depth, problem.query_depth, problem.positions)
    return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas)


class _Convolution(torch.autograd.Function):
    """Convolution to the same size, with a weight gradient by matrix products.

    The library's weight gradient adds up batch and positions one by one: on CPU its error grows to ten times that of
    a matrix product, and it takes longer for large scopes.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, weights: Tensor, dilation: int) -> Tensor:
        return _convolve(maps, weights, dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        maps, weights, ctx.dilation = inputs
        ctx.save_for_backward(maps, weights)
        ctx.save_for_forward(maps, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        maps, weights = ctx.saved_tensors
        maps_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            # three to seven times as fast as a convolution with the mirrored weights
            maps_gradient = _convolve(gradient, weights, ctx.dilation, transposed=True)
        if ctx.needs_input_grad[1]:
            weights_gradient = _correlate(gradient, maps, weights.shape[2:], ctx.dilation)
        return maps_gradient, weights_gradient, None


class _ForwardModeConvolution(_Convolution):
    """The same, with a derivative in forward mode: a convolution is linear in each factor."""

    @staticmethod
    def jvp(ctx: Any, maps_tangent: Tensor | None, weights_tangent: Tensor | None, _: None) -> Tensor:
        maps, weights = ctx.saved_tensors
        parts = []
        if maps_tangent is not None:
            parts.append(_convolve(maps_tangent, weights, ctx.dilation))
        if weights_tangent is not None:
            parts.append(_convolve(maps, weights_tangent, ctx.dilation))
        return parts[0] + parts[1] if len(parts) == 2 else parts[0]


def _convolve(maps: Tensor, weights: Tensor, dilation: int, transposed: bool = False) -> Tensor:
    padding = [side // 2 * dilation for side in weights.shape[2:]]
    function = (_TRANSPOSED if transposed else _CONVOLUTIONS)[maps.ndim - 2]
    return function(maps, weights, padding=padding, dilation=dilation)


def _correlate(gradient: Tensor, maps: Tensor, scope: torch.Size, dilation: int) -> Tensor:
    """sum over batch and positions of gradient (B, k, S..) times maps (B, u, S..) moved by each offset: (k, u, r..)."""
    grid = maps.shape[2:]
    padding = [side // 2 * dilation for side in scope]
    padded = F.pad(maps, [p for p in reversed(padding) for _ in range(2)])
    rows = gradient.transpose(0, 1).flatten(1)  # (k, B S..)
    parts = []
    for offsets in itertools.product(*(range(side) for side in scope[:-1])):
        moved = padded
        for axis, offset in enumerate(offsets):
            moved = moved.narrow(axis + 2, offset * dilation, grid[axis])
        windows = moved.unfold(-1, grid[-1], dilation)  # (B, u, S.., r_D, S_D)
        columns = windows.movedim((1, -2), (-2, -1)).flatten(0, -3).flatten(1)  # (B S.., u r_D)
        parts.append((rows @ columns).unflatten(1, (maps.shape[1], scope[-1])))
    return torch.stack(parts, dim=2).unflatten(2, scope[:-1]) if len(scope) > 1 else parts[0]
