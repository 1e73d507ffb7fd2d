"""Pack queries and outputs so that the mirrored positions c + t and c - t are adjacent, where c is the center of a row.

Mirrored positions have the same cosines and sines, up to sign, in a Fourier transform centered at c.
"""

import math

import torch
from torch import Tensor

from lambdanets.ops.position.problem import Problem
from lambdanets.ops.position.scratch import scratch


def pack_queries(queries: Tensor, problem: Problem) -> Tensor:
    """Pack queries (b, h, n, k) as [q+, q+] and [q-, -q-], with shape (t, S_1, (S_2.., b), (2, h), (2, k))."""
    p = problem
    x, side, half_side = _columns_first(queries, p)
    packed = scratch("queries", (half_side, *x.shape[1:4], 2, p.heads, 2, p.query_depth), queries)
    packed[..., 0, :, 0, :] = x[side - half_side :]
    packed[..., 0, :, 1, :] = x[side - half_side :]
    for t in range(half_side):
        mirrored = x[half_side - 1 - t]
        packed[t, ..., 1, :, 0, :] = mirrored
        torch.neg(mirrored, out=packed[t, ..., 1, :, 1, :])
    return packed.flatten(2, 3).flatten(5, 6).flatten(3, 4)


def unpack_queries(grad_queries: Tensor, problem: Problem) -> Tensor:
    """The adjoint of `pack_queries`; the result is contiguous as (b, n, h, k)."""
    packed = _split_halves(grad_queries, problem, 2, problem.query_depth)
    maps = packed.new_empty(packed.shape[3], problem.num_positions, *packed.shape[5::2]).transpose(1, 2)
    x, side, half_side = _columns_first(maps, problem)
    for t in range(half_side):
        torch.sub(packed[t, ..., 1, :, 0, :], packed[t, ..., 1, :, 1, :], out=x[half_side - 1 - t])
    # The center of an odd side is in both halves, but its gradient is only in the first.
    torch.add(packed[..., 0, :, 0, :], packed[..., 0, :, 1, :], out=x[side - half_side :])
    return maps


def pack_outputs(outputs: Tensor, problem: Problem) -> Tensor:
    """Pack outputs (b, h, n, v) as (t, S_1, (S_2.., b), (2, h), v); the center of an odd side is not repeated."""
    p = problem
    x, side, half_side = _columns_first(outputs, p)
    packed = scratch("outputs", (half_side, *x.shape[1:4], 2, p.heads, p.value_depth), outputs)
    packed[..., 0, :, :] = x[side - half_side :]
    for t in range(half_side):
        packed[t, ..., 1, :, :] = x[half_side - 1 - t]
    if side % 2:
        packed[0, ..., 1, :, :] = 0
    return packed.flatten(2, 3).flatten(3, 4)


def unpack_outputs(outputs: Tensor, problem: Problem) -> Tensor:
    """The inverse of `pack_outputs`; the result is contiguous as (b, n, h, v)."""
    packed = _split_halves(outputs, problem, problem.value_depth)
    maps = packed.new_empty(packed.shape[3], problem.num_positions, *packed.shape[5:]).transpose(1, 2)
    x, side, half_side = _columns_first(maps, problem)
    for t in range(half_side):
        x[half_side - 1 - t] = packed[t, ..., 1, :, :]
    x[side - half_side :] = packed[..., 0, :, :]
    return maps


def _split_halves(packed: Tensor, problem: Problem, *depths: int) -> Tensor:
    """View packed rows as (t, S_1, (S_2..), b, 2, h, depths)."""
    p = problem
    return packed.view(packed.shape[0], p.grid[0], math.prod(p.grid[1:-1]), -1, 2, p.heads, *depths)


def _columns_first(x: Tensor, problem: Problem) -> tuple[Tensor, int, int]:
    """Return a view of (b, h, n, c) as (W, S_1, S_2.., b, h, c), the side W, and W / 2 rounded up."""
    side = problem.grid[-1]
    columns = x.unflatten(2, (problem.grid[0], -1, side)).permute(4, 2, 3, 0, 1, 5)
    return columns, side, -(-side // 2)
