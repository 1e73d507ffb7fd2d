"""Sizes, operands and costs of position interactions, and conversion of dilated problems to undilated ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from lambdanets.ops.geometry import crop_to_grid, join_phases, radius, split_phases, static_shape

# Work is in multiply-adds of large products. A PyTorch call costs as much as CALL of them, and small
# products cost as if each side were larger by SIDE.
CALL, SIDE = 400_000, 5


@dataclass(frozen=True)
class Problem:
    """Sizes, dtype and device of a position interaction, on which the choice of an algorithm depends.

    before, after: number of offsets below and above 0 in the table, along each axis of the grid. The sides of the
    table are before + 1 + after, and offset 0 is at index `before`.
    causal: use only context positions up to and including the query in row-major order; `after` is then 0 along the
    first axis.
    device: "cpu", or "cuda:0" and so on, since a machine may have different GPUs; "cuda" is the current GPU.
    channels_first: whether the output should be in memory as (b, h, v, n), which algorithms may ignore.
    """

    batch: int
    heads: int
    grid: tuple[int, ...]
    query_depth: int
    value_depth: int
    intra_depth: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    causal: bool
    dtype: torch.dtype
    device: str
    channels_first: bool = False

    @property
    def num_positions(self) -> int:
        """Number of query positions n, which is also the number of context positions."""
        return math.prod(self.grid)

    @property
    def scope(self) -> tuple[int, ...]:
        """The sides of the table."""
        return tuple(before + 1 + after for before, after in zip(self.before, self.after, strict=True))

    def select_by_device(self, cpu: int, gpu: int) -> int:
        """Return `gpu` if the problem is on a GPU, otherwise `cpu`."""
        return gpu if torch.device(self.device).type == "cuda" else cpu

    def limit_batch(self, maximum: int) -> "Problem":
        """Return the same problem with at most `maximum` examples, but at least one."""
        return replace(self, batch=min(self.batch, max(1, maximum)))

    def at_least_2d(self) -> "Problem":
        """Return the same problem with at least two axes: a sequence becomes a grid with one row."""
        if len(self.grid) > 1:
            return self
        return replace(self, grid=(1, *self.grid), before=(0, *self.before), after=(0, *self.after))


# Tensors that an algorithm computes only from the table, for the forward and backward passes of all examples.
Prepared = tuple[Tensor, ...]


class Factors(NamedTuple):
    """queries (b, h, n, k), table (r_1..r_D, k, u), values (b, n, v, u), a content lambda (b, k, v) or None."""

    queries: Tensor
    table: Tensor
    values: Tensor
    content: Tensor | None


class Operands(NamedTuple):
    """Inputs of a `BoundAlgorithm`: as `Factors`, but with the prepared table."""

    queries: Tensor
    prepared: Prepared
    values: Tensor
    content: Tensor | None


class NeedsGrad(NamedTuple):
    """Whether a backward pass computes the gradient of each factor."""

    queries: bool
    table: bool
    values: bool
    content: bool = False


@dataclass(frozen=True)
class Cost:
    """The cost of an algorithm for a problem.

    multiply_adds: of the forward pass. workspace_bytes: memory in addition to inputs and output, in
    the pass that needs more. work: time of the forward pass in multiply-adds of large products,
    by which algorithms are compared.
    """

    multiply_adds: float
    workspace_bytes: int
    work: float

    def repeat(self, count: int) -> "Cost":
        """Return the cost of `count` calls, one after the other."""
        multiply_adds, work = count * self.multiply_adds, count * self.work
        return replace(self, multiply_adds=multiply_adds, work=work)


def matmul_work(count: float, rows: float, inner: float, columns: float) -> float:
    """The work of `count` matrix products of (rows, inner) and (inner, columns)."""
    return count * (rows + SIDE) * (inner + SIDE) * (columns + SIDE)


def make_problem(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int], causal: bool) -> Problem:
    """Make the problem for checked inputs: table (r_1..r_D, k, u) with odd sides, values (b, n, v, u)."""
    batch, heads, _, query_depth = static_shape(queries)
    *_, value_depth, intra_depth = static_shape(values)
    radii = tuple(radius(r, side) for r, side in zip(static_shape(table), grid, strict=False))
    return Problem(
        batch=max(1, batch),  # an empty batch is planned as one example
        heads=heads,
        grid=tuple(grid),
        query_depth=query_depth,
        value_depth=value_depth,
        intra_depth=intra_depth,
        before=radii,
        after=(0 if causal else radii[0], *radii[1:]),
        causal=causal,
        dtype=values.dtype,
        device=str(values.device) if values.device.type == "cuda" else values.device.type,
    )


def undilate(
    factors: Factors, grid: Sequence[int], dilation: int, causal: bool, channels_first: bool = False
) -> tuple[Factors, Problem]:
    """Return the factors of the equivalent undilated problem, with the table cropped to the grid, and the problem.

    A dilation d on a grid with D axes gives d^D independent problems, which are merged into the batch.
    """
    queries, table, values, content = factors
    if dilation > 1:
        if content is not None:
            content = content.repeat_interleave(dilation ** len(grid), dim=0)
        queries = split_phases(queries.transpose(1, 2), grid, dilation).transpose(1, 2)
        values = split_phases(values, grid, dilation)
        grid = [-(-side // dilation) for side in grid]
    problem = make_problem(queries, table, values, grid, causal)
    problem = replace(problem, channels_first=channels_first and dilation == 1)
    return Factors(queries, crop_to_grid(table, grid), values, content), problem


def redilate(x: Tensor, grid: Sequence[int], dilation: int) -> Tensor:
    """Convert outputs or grad_queries (b d^D, h, n', ..) of the undilated problem to the layout of the dilated one."""
    return x if dilation == 1 else join_phases(x.transpose(1, 2), grid, dilation).transpose(1, 2)
