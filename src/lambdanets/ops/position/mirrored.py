"""Pack queries and outputs so that mirrored positions, c + t and c - t, c the middle of a row, are adjacent.

Both share the cosines and sines of a Fourier transform centered at c.
"""

import math

import torch
from torch import Tensor

from lambdanets.ops.position.problem import Problem
from lambdanets.ops.position.scratch import scratch


def pack_queries(queries: Tensor, problem: Problem) -> Tensor:
    """(b, h, n, k) to [q+, q+] and [q-, -q-]: (t, S_1, (S_2.., b), (2, h), (2, k)), mirrored positions adjacent."""
    p = problem
    x, side, halves = _by_column(queries, p)
    pairs = scratch("queries", (halves, *x.shape[1:4], 2, p.heads, 2, p.query_depth), queries)
    pairs[..., 0, :, 0, :] = x[side - halves :]
    pairs[..., 0, :, 1, :] = x[side - halves :]
    for t in range(halves):
        mirrored = x[halves - 1 - t]
        pairs[t, ..., 1, :, 0, :] = mirrored
        torch.neg(mirrored, out=pairs[t, ..., 1, :, 1, :])
    return pairs.flatten(2, 3).flatten(5, 6).flatten(3, 4)


def unpack_queries(grad_queries: Tensor, problem: Problem) -> Tensor:
    """The adjoint of `pack_queries`, contiguous as (b, n, h, k)."""
    parts = _by_half(grad_queries, problem, 2, problem.query_depth)
    maps = parts.new_empty(parts.shape[3], problem.positions, *parts.shape[5::2]).transpose(1, 2)
    x, side, halves = _by_column(maps, problem)
    for t in range(halves):
        torch.sub(parts[t, ..., 1, :, 0, :], parts[t, ..., 1, :, 1, :], out=x[halves - 1 - t])
    # the middle of an odd side is in both halves, its gradient only in the first
    torch.add(parts[..., 0, :, 0, :], parts[..., 0, :, 1, :], out=x[side - halves :])
    return maps


def pack_outputs(outputs: Tensor, problem: Problem) -> Tensor:
    """(b, h, n, v) to (t, S_1, (S_2.., b), (2, h), v), mirrored positions adjacent, the middle of an odd side once."""
    p = problem
    x, side, halves = _by_column(outputs, p)
    pairs = scratch("outputs", (halves, *x.shape[1:4], 2, p.heads, p.value_depth), outputs)
    pairs[..., 0, :, :] = x[side - halves :]
    for t in range(halves):
        pairs[t, ..., 1, :, :] = x[halves - 1 - t]
    if side % 2:
        pairs[0, ..., 1, :, :] = 0
    return pairs.flatten(2, 3).flatten(3, 4)


def unpack_outputs(outputs: Tensor, problem: Problem) -> Tensor:
    """(t, S_1, (S_2.., b), (2, h), v) to (b, h, n, v), contiguous as (b, n, h, v)."""
    parts = _by_half(outputs, problem, problem.value_depth)
    maps = parts.new_empty(parts.shape[3], problem.positions, *parts.shape[5:]).transpose(1, 2)
    x, side, halves = _by_column(maps, problem)
    for t in range(halves):
        x[halves - 1 - t] = parts[t, ..., 1, :, :]
    x[side - halves :] = parts[..., 0, :, :]
    return maps


def _by_half(packed: Tensor, problem: Problem, *depths: int) -> Tensor:
    """Packed rows as (t, S_1, (S_2..), b, 2, h, depths)."""
    p = problem
    return packed.view(packed.shape[0], p.grid[0], math.prod(p.grid[1:-1]), -1, 2, p.heads, *depths)


def _by_column(x: Tensor, problem: Problem) -> tuple[Tensor, int, int]:
    """A view of (b, h, n, c) as (W, S_1, S_2.., b, h, c), W, and W / 2 rounded up."""
    side = problem.grid[-1]
    columns = x.unflatten(2, (problem.grid[0], -1, side)).permute(4, 2, 3, 0, 1, 5)
    return columns, side, -(-side // 2)
