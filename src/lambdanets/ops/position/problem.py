"""What is asked of the position interaction, and what an algorithm says it would cost."""

import math
from dataclasses import dataclass

import torch

from lambdanets.ops.geometry import reach


@dataclass(frozen=True)
class Problem:
    """Sizes, dtype and device of one position interaction: all that the choice of an algorithm depends on.

    scope: sides of the table already cropped to the grid, each odd and at most 2 S - 1.
    """

    batch: int
    heads: int
    grid: tuple[int, ...]
    query_depth: int
    value_depth: int
    intra_depth: int
    scope: tuple[int, ...]
    dilation: int
    dtype: torch.dtype
    device: str

    @property
    def positions(self) -> int:
        """n, the number of query (and context) positions."""
        return math.prod(self.grid)

    @property
    def lambda_elements(self) -> int:
        """b n k v, the size of all position lambdas."""
        return self.batch * self.positions * self.query_depth * self.value_depth

    @property
    def apply_operations(self) -> int:
        """Floating-point operations of applying the lambdas to the queries, two per multiply-add."""
        return 2 * self.heads * self.lambda_elements


@dataclass(frozen=True)
class Cost:
    """Predicted cost of a forward pass: operations (two per multiply-add) and bytes held beside inputs and output."""

    operations: int
    workspace_bytes: int


def problem_of(
    queries: torch.Tensor, table: torch.Tensor, values: torch.Tensor, grid: tuple[int, ...], dilation: int
) -> Problem:
    """The problem that checked inputs pose: table (r_1..r_D, k, u), values (b, n, v, u)."""
    batch, heads, _, query_depth = queries.shape
    scope = tuple(2 * reach(r, side, dilation) + 1 for r, side in zip(table.shape, grid, strict=False))
    return Problem(
        batch=batch,
        heads=heads,
        grid=grid,
        query_depth=query_depth,
        value_depth=values.shape[2],
        intra_depth=values.shape[3],
        scope=scope,
        dilation=dilation,
        dtype=values.dtype,
        device=values.device.type,
    )
