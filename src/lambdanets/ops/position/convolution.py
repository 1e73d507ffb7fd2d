"""Lambda convolution (Sec. 3.4) with v folded into the batch: an n-d convolution for n-d data, never n+1.

lambda[(b v),k,:] = conv(V[(b v),u,:], R[k,u,r]): the value channels share the weights, so they ride in the batch.
Cost: n k u v b prod(r) multiply-adds; nothing of size n m. For small scopes and large grids.

The paper's two other forms of the same linear map, `depthwise_convolution` and `value_axis_convolution`, differ in
the forward pass alone and share the gradients written here.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.geometry import windows
from lambdanets.ops.position.problem import Cost, Problem

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

# maps (b, v, u, S..), weights (k, u, r..) and the dilation -> lambdas (b, v, k, S..)
Form = Callable[[Tensor, Tensor, int], Tensor]


def cost(problem: Problem) -> Cost:
    """Predicted cost of `interact`."""
    operations = 2 * problem.lambda_elements * problem.intra_depth * math.prod(problem.scope)
    return Cost(operations + problem.apply_operations, 2 * problem.lambda_elements * problem.dtype.itemsize)


def interact(queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v)."""
    return interact_in_form(_values_in_the_batch, queries, table, values, problem)


def interact_in_form(form: Form, queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """`interact` with the lambdas computed by the form given; backward and forward mode are the same for all."""
    maps = values.permute(0, 2, 3, 1).unflatten(3, problem.grid).contiguous()
    weights = table.movedim((-2, -1), (0, 1)).contiguous()
    # torch.compile cannot trace a Function with a rule for forward mode
    function = _Convolution if torch.compiler.is_compiling() else _ForwardModeConvolution
    lambdas = function.apply(maps, weights, problem.dilation, form)
    return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas.flatten(3))


def _values_in_the_batch(maps: Tensor, weights: Tensor, dilation: int) -> Tensor:
    """(b, v, u, S..) and (k, u, r..) to (b, v, k, S..)."""
    padding = [side // 2 * dilation for side in weights.shape[2:]]
    convolve = CONVOLUTIONS[maps.ndim - 3]
    lambdas = convolve(maps.flatten(0, 1), weights, padding=padding, dilation=dilation)
    return lambdas.unflatten(0, maps.shape[:2])


class _Convolution(torch.autograd.Function):
    """Convolution to the same size, with gradients that are faster and more exact on CPU than the library's own.

    That adds up k or batch and positions one by one, so its error grows to ten times that of the plain formula; here
    each query depth and each map of the batch is summed by itself first.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, weights: Tensor, dilation: int, form: Form) -> Tensor:
        return form(maps, weights, dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, Form], output: Tensor) -> None:
        maps, weights, ctx.dilation, ctx.form = inputs
        ctx.save_for_backward(maps, weights)
        ctx.save_for_forward(maps, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        maps, weights = ctx.saved_tensors
        maps_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            maps_gradient = _convolve_back(gradient.flatten(0, 1), weights, ctx.dilation).view_as(maps)
        if ctx.needs_input_grad[1]:
            weights_gradient = _correlate(gradient.flatten(0, 1), maps.flatten(0, 1), weights.shape[2:], ctx.dilation)
        return maps_gradient, weights_gradient, None, None


class _ForwardModeConvolution(_Convolution):
    """The same, with a derivative in forward mode: a convolution is linear in each factor."""

    @staticmethod
    def jvp(ctx: Any, maps_tangent: Tensor | None, weights_tangent: Tensor | None, *_: None) -> Tensor:
        maps, weights = ctx.saved_tensors
        parts = []
        if maps_tangent is not None:
            parts.append(ctx.form(maps_tangent, weights, ctx.dilation))
        if weights_tangent is not None:
            parts.append(ctx.form(maps, weights_tangent, ctx.dilation))
        return parts[0] + parts[1] if len(parts) == 2 else parts[0]


def _convolve_back(gradient: Tensor, weights: Tensor, dilation: int) -> Tensor:
    """(B, k, S..) and (k, u, r..) to (B, u, S..): the transposed convolution for each k alone, then their sum."""
    k, u = weights.shape[:2]
    padding = [side // 2 * dilation for side in weights.shape[2:]]
    transposed = _TRANSPOSED[gradient.ndim - 2]
    parts = transposed(gradient, weights, padding=padding, dilation=dilation, groups=k)
    return parts.unflatten(1, (k, u)).sum(dim=1)


def _correlate(gradient: Tensor, maps: Tensor, scope: torch.Size, dilation: int) -> Tensor:
    """sum over batch and positions of gradient (B, k, S..) times maps (B, u, S..) moved by each offset: (k, u, r..)."""
    grid = maps.shape[2:]
    padding = [side // 2 * dilation for side in scope]
    padded = F.pad(maps, [p for p in reversed(padding) for _ in range(2)])
    rows = gradient.flatten(2)  # (B, k, n)
    parts = []
    for offsets in itertools.product(*(range(side) for side in scope[:-1])):
        moved = padded
        for axis, offset in enumerate(offsets):
            moved = moved.narrow(axis + 2, offset * dilation, grid[axis])
        shifted = windows(moved, moved.ndim - 1, scope[-1], grid[-1], dilation)  # (B, u, S.., r_D, S_D)
        columns = shifted.movedim((1, -2), (-2, -1)).flatten(1, -3).flatten(2)  # (B, n, u r_D)
        parts.append((rows @ columns).sum(dim=0).unflatten(1, (maps.shape[1], scope[-1])))
    return torch.stack(parts, dim=2).unflatten(2, scope[:-1]) if len(scope) > 1 else parts[0]
