"""What the algorithms in PyTorch share: all grids as maps, and tiles of positions with windows of context positions.

A sequence is a map with one row or, if it is long and its window is too, with rows of W positions: the offset
(dy, dx) of the map is the offset dy W + dx of the sequence. The slices z of a volume are maps, whose values have the
slices in reach as intra-depth: V'[(b z), (y x), v, (dz u)] = V[b, (z + dz) y x, v, u].

Along an axis, a tile of T positions has a window of w = before + T + after positions, or the whole axis if the tile
covers it. Maps are zero-padded to whole tiles and windows. The embedding of a pair depends only on its offset, so all
tiles share one block of embeddings, E[t, w] = R[w - t], or R[before + w - t] if the tile covers the axis.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from lambdanets.ops.position.algorithm import (
    Algorithm,
    Cost,
    Derivatives,
    Inputs,
    Needs,
    Prepared,
    Problem,
    grad_of_content,
)
from lambdanets.ops.tables import pad_axis
from lambdanets.ops.tracing import unfold

_MIN_ROW = 32  # positions of the rows of a long sequence


class Axis(NamedTuple):
    """The tiles of one axis of a grid.

    side: of the grid. before, after: number of offsets below and above 0 in the table. tile: positions of a tile.
    """

    side: int
    before: int
    after: int
    tile: int = 1

    @property
    def is_covered(self) -> bool:
        return self.tile >= self.side

    @property
    def window(self) -> int:
        """Positions of a window."""
        return self.side if self.is_covered else self.tile + self.before + self.after

    @property
    def num_tiles(self) -> int:
        return -(-self.side // self.tile)

    @property
    def padding(self) -> tuple[int, int]:
        """Positions before and after the axis that complete the windows."""
        before = 0 if self.is_covered else self.before
        return before, (self.num_tiles - 1) * self.tile + self.window - before - self.side

    def pad(self, x: Tensor, dim: int) -> Tensor:
        """Complete the windows along a dimension of x by zeros."""
        return x if self.is_covered else pad_axis(x, dim, *self.padding)

    def tiles(self, x: Tensor, dim: int) -> Tensor:
        """Split a dimension of x into tiles and their positions."""
        missing = self.num_tiles * self.tile - self.side
        return (pad_axis(x, dim, 0, missing) if missing else x).unflatten(dim, (self.num_tiles, self.tile))

    def windows(self, x: Tensor, dim: int) -> Tensor:
        """The windows of all tiles along a dimension of x, as a new last dimension."""
        return unfold(self.pad(x, dim), dim, self.num_tiles, self.window, self.tile)

    def add_windows(self, windows: Tensor, dim: int) -> Tensor:
        """The adjoint of `windows`."""
        if self.is_covered:
            return windows.select(dim, 0).movedim(-1, dim)
        starts = range(0, self.num_tiles * self.tile, self.tile)
        return _add_windows(windows, dim, starts).narrow(dim, self.before, self.side)

    @property
    def _table_padding(self) -> tuple[int, int]:
        """Offsets before and after those of the table that pairs of a tile and its window have."""
        first = -self.padding[0]  # of the window, relative to the tile
        return self.tile - 1 - first - self.before, first + self.window - 1 - self.after

    def pairs(self, table: Tensor, dim: int) -> Tensor:
        """The entries of a table for the pairs of a tile and its window: T replaces r, w is a new last dimension."""
        # Window i starts at offset i, so it belongs to tile position T - 1 - i.
        return unfold(pad_axis(table, dim, *self._table_padding), dim, self.tile, self.window).flip(dim)

    def add_pairs(self, pairs: Tensor, dim: int) -> Tensor:
        """The adjoint of `pairs`."""
        offsets = _add_windows(pairs, dim, range(self.tile - 1, -1, -1))
        return offsets.narrow(dim, self._table_padding[0], self.before + 1 + self.after)


def _add_windows(windows: Tensor, dim: int, starts: Sequence[int]) -> Tensor:
    """Add windows, the last dimension, which start at these positions of a dimension, in this order."""
    shape = list(windows.shape[:-1])
    shape[dim] = max(starts) + windows.shape[-1]
    total = windows.new_zeros(shape)
    for start, window in zip(starts, windows.unbind(dim), strict=True):
        total.narrow(dim, start, windows.shape[-1]).add_(window.movedim(-1, dim))
    return total


class Maps(NamedTuple):
    """How a grid is computed as maps.

    rows, columns: of a map. slices: of a volume. sequence: of which a map has the positions in several rows.
    """

    rows: Axis
    columns: Axis
    slices: Axis = Axis(1, 0, 0)
    sequence: Axis | None = None

    @classmethod
    def of(cls, grid: Sequence[int], before: Sequence[int], after: Sequence[int]) -> "Maps":
        axes = [Axis(*sizes) for sizes in zip(grid, before, after, strict=True)]
        if len(axes) > 1:
            return cls(*axes[-2:], *axes[:-2])
        (sequence,) = axes
        width = min(math.isqrt(sequence.side), (sequence.before + 1 + sequence.after) // 4)
        if width < _MIN_ROW:
            return cls(Axis(1, 0, 0), sequence)
        height = -(-sequence.side // width)
        reach = [min(height - 1, (offsets + width - 1) // width) for offsets in sequence[1:3]]
        return cls(Axis(height, *reach), Axis(width, width - 1, width - 1), sequence=sequence)

    @property
    def is_single(self) -> bool:
        """Whether the grid is a map, or a row of one."""
        return self.slices.side == 1 and self.sequence is None

    @property
    def missing(self) -> int:
        """Positions of a map after those of the sequence."""
        return 0 if self.sequence is None else self.rows.side * self.columns.side - self.sequence.side

    def table(self, table: Tensor) -> Tensor:
        """Reshape a table (r_1..r_D, k, u) to (r_y, r_x, k, (r_z u))."""
        if table.ndim > 3:
            return table if table.ndim == 4 else table.movedim(0, 3).flatten(3)
        if self.sequence is None:
            return table.unsqueeze(0)
        first, last = self._farthest
        table = pad_axis(table, 0, first - self.sequence.before, last - self.sequence.after)
        width, (_, before, after, _) = self.columns.side, self.rows
        return unfold(table, 0, before + 1 + after, 2 * width - 1, width).movedim(3, 1)

    def table_adjoint(self, grad: Tensor) -> Tensor:
        """The adjoint of `table`, with more axes of one offset."""
        if self.sequence is None:
            return grad.unflatten(3, (self.slices.before + 1 + self.slices.after, -1)).movedim(3, 0)
        starts = range(0, len(grad) * self.columns.side, self.columns.side)
        offsets = _add_windows(grad.movedim(1, 3), 0, starts)
        first = self._farthest[0] - self.sequence.before
        return offsets.narrow(0, first, self.sequence.before + 1 + self.sequence.after)

    @property
    def _farthest(self) -> tuple[int, int]:
        """The farthest offsets of a sequence that the rows and columns of its map reach."""
        width = self.columns.side
        return self.rows.before * width + width - 1, self.rows.after * width + width - 1

    def split(self, x: Tensor) -> Tensor:
        """Reshape (b, n, h, c) to maps (b, (y x), h, c), of which the slices are examples."""
        if self.is_single:
            return x
        return pad_axis(x, 1, 0, self.missing).unflatten(1, (self.slices.side, -1)).flatten(0, 1)

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `split`."""
        if self.is_single:
            return x
        x = x.unflatten(0, (-1, self.slices.side)).flatten(1, 2)
        return x.narrow(1, 0, x.shape[1] - self.missing)

    def values(self, values: Tensor) -> Tensor:
        """Reshape values (b, n, v, u) to maps (b, (y x), v, (dz u))."""
        if self.is_single:
            return values
        x = pad_axis(values, 1, 0, self.missing).unflatten(1, (self.slices.side, -1))
        return self.slices.windows(x, 1).transpose(4, 5).flatten(4).flatten(0, 1)  # of (b, z, (y x), v, u, dz)

    def values_adjoint(self, grad: Tensor) -> Tensor:
        """The adjoint of `values`."""
        if self.is_single:
            return grad
        x = grad.unflatten(0, (-1, self.slices.side)).unflatten(4, (self.slices.window, -1)).transpose(4, 5)
        x = self.slices.add_windows(x, 1).flatten(1, 2)
        return x.narrow(1, 0, x.shape[1] - self.missing)


class MapAlgorithm(Algorithm):
    """An algorithm for the position term of maps, with the tiles and the examples of a call that take the least work.

    sides: of the maps. terms: their intra-depth, u times the slices in reach. With them and the attributes of
    `Algorithm`, the constructor calls `tilings` and `tiled_cost`.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        maps = Maps.of(problem.grid, problem.before, problem.after)
        self.sides, self.terms = (maps.rows.side, maps.columns.side), problem.intra_depth * maps.slices.window
        self.maps, self.batch = min(self.tilings(maps), key=lambda tiling: self.tiled_cost(*tiling).work)

    def cost(self) -> Cost:
        return self.tiled_cost(self.maps, self.batch)

    @abstractmethod
    def tilings(self, maps: Maps) -> list[tuple[Maps, int]]:
        """Candidates: maps with tiles, and the maximum number of examples of a call."""

    @abstractmethod
    def tiled_cost(self, maps: Maps, batch: int) -> Cost:
        """`cost` with one of the candidates."""

    @abstractmethod
    def block(self, table: Tensor) -> Tensor:
        """Compute the embeddings of the pairs of a tile from the table (r_y, r_x, k, u) of a map."""

    @abstractmethod
    def block_adjoint(self, grad_block: Tensor) -> Tensor:
        """Compute the gradient of the table of a map from that of the block."""

    @abstractmethod
    def derive_maps(
        self, grad_output: Tensor | None, queries: Tensor, prepared: Prepared, values: Tensor, needs: Needs
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Compute the needed of the position term (b, n, h, v) of maps and gradients of queries, block and values.

        queries: (b, n, h, k). values: (b, n, v, u). Gradients of block and values are in float32 or wider.
        """

    def prepare(self, table: Tensor) -> Prepared:
        return (self.block(self.maps.table(table)),)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        p, grad = self.problem, self.maps.table_adjoint(self.block_adjoint(grad_prepared[0]))
        return grad.reshape(*p.scope, p.query_depth, p.intra_depth)

    def derive(self, grad_output: Tensor | None, inputs: Inputs, needs: Needs) -> Derivatives:
        maps, (queries, prepared, values, content) = self.maps, inputs
        rows, grad_rows = queries.transpose(1, 2), None if grad_output is None else grad_output.transpose(1, 2)
        grad_maps = None if grad_rows is None else maps.split(grad_rows)
        output, grad_queries, grad_block, grad_values = self.derive_maps(
            grad_maps, maps.split(rows), prepared, maps.values(values), needs
        )
        return (
            self._join_with_products(output, rows, content),
            self._join_with_products(grad_queries, grad_rows, None if content is None else content.mT),
            None if grad_block is None else (grad_block,),
            None if grad_values is None else maps.values_adjoint(grad_values),
            grad_of_content(queries, grad_output) if needs.content else None,
        )

    def _join_with_products(self, total: Tensor | None, rows: Any, matrices: Tensor | None) -> Tensor | None:
        """Join maps (b, n, h, j), to (b, h, n, j), and add rows (b, n, h, i) @ matrices (b, i, j) in place."""
        if total is None:
            return None
        total = self.maps.join(total)
        if matrices is not None:
            total = total.flatten(1, 2).baddbmm_(rows.flatten(1, 2), matrices).unflatten(1, (-1, total.shape[2]))
        return total.transpose(1, 2)
