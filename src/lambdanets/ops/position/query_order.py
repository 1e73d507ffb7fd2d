"""Query order: multiply queries by embeddings first, then logits by values, tile by tile.

logits[n,h,m,u] = sum_k q[h,n,k] E[n,k,m,u];  y[h,n,:] = sum_{m,u} logits[n,h,m,u] V[m,:,u].
Cost: h (k + v) u multiply-adds for each pair of a query and a position in the window of its tile, compared with k v u
if lambdas are summed directly, so it is faster for large v. Memory: logits of one row of tiles.

With J_1 rows of J tiles, queries are packed as (J_1, positions of the tile, (h, J, b), k) and values as ((J, b), S_1,
(columns of the window, u), v), so that neither matrix product needs a copy: logits (positions, (h, J, b), window)
are batched over positions, and y ((J, b), (positions, h), v) over tiles and examples.
"""

import itertools

import torch
from torch import Tensor

from lambdanets.ops.position.algorithm import CALL, Cost, Needs, Prepared, Problem, matmul_work
from lambdanets.ops.position.maps import MapAlgorithm, Maps
from lambdanets.ops.precision import accumulation_dtype, product_dtype

# Maximum size of the logits of a row of tiles, to fit the cache of a CPU core and of a GPU; larger batches are split.
_LOGITS_BYTES = 8 << 20, 32 << 20
_WORK_PER_COPIED_ELEMENT = 70  # in multiply-adds
# Candidates for the sides of tiles, in addition to the side of the grid.
_TILE_ROWS = (1, 2, 4, 7)
_TILE_COLUMNS = (2, 4, 7, 8, 16, 32)
# The axes of tiles (b, J_1, T_1, J, T_2, h, channels) as they are packed, see above.
_QUERIES, _OUTPUTS = (1, 2, 4, 5, 3, 0, 6), (1, 3, 0, 2, 4, 5, 6)


class QueryOrder(MapAlgorithm):
    name = "query_order"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.dtype = product_dtype(problem.dtype, problem.is_gpu)
        self.rows, self.columns, *_ = self.maps

    def tilings(self, maps: Maps) -> list[tuple[Maps, int]]:
        """With tiles whose logits fit the cache."""
        (height, width), limit = self.sides, _LOGITS_BYTES[self.problem.is_gpu]
        heights = sorted({min(tile, height) for tile in (*_TILE_ROWS, height)})
        widths = [*(tile for tile in _TILE_COLUMNS if 2 * tile <= width), width]
        tilings: list[tuple[Maps, int]] = []
        for tile_height, tile_width in itertools.product(heights, widths):
            rows, columns = maps.rows._replace(tile=tile_height), maps.columns._replace(tile=tile_width)
            tiled = maps._replace(rows=rows, columns=columns)
            examples = min(self.problem.batch, limit // (maps.slices.side * self._logits_bytes(tiled)))
            if examples > 0 or not tilings:
                tilings.append((tiled, max(1, examples)))
        return tilings

    def tiled_cost(self, maps: Maps, batch: int) -> Cost:
        p, rows, columns, count = self.problem, maps.rows, maps.columns, batch * maps.slices.side
        k, v, window = p.query_depth, p.value_depth, rows.window * columns.window * self.terms
        windows, positions = columns.num_tiles * count, rows.tile * columns.tile
        work = matmul_work(positions, p.heads * windows, k, window)
        work += matmul_work(windows, positions * p.heads, window, v)
        work = rows.num_tiles * (work + 6 * CALL) + 12 * CALL
        packed_elements = p.heads * count * rows.side * columns.side * (k + v)
        packed_elements += windows * rows.side * columns.window * self.terms * v
        work += _WORK_PER_COPIED_ELEMENT * packed_elements
        # Peak memory is in the backward pass: block and its gradient, logits twice and one product.
        elements = 4 * positions * k * window + 3 * packed_elements
        workspace = product_dtype(p.dtype, p.is_gpu).itemsize * elements + 3 * count * self._logits_bytes(maps)
        tiles = p.batch * maps.slices.side * rows.num_tiles * columns.num_tiles
        return Cost(tiles * positions * p.heads * window * (k + v), workspace, -(-p.batch // batch) * work)

    def _logits_bytes(self, maps: Maps) -> int:
        """The size of the logits of a row of tiles of a map."""
        rows, columns = maps.rows, maps.columns
        queries = self.problem.heads * rows.tile * columns.tile * columns.num_tiles
        logits = queries * rows.window * columns.window * self.terms
        return accumulation_dtype(self.problem.dtype).itemsize * logits

    def block(self, table: Tensor) -> Tensor:
        """Return ((T_1, T_2), k, (w_1, w_2, u))."""
        pairs = self.rows.pairs(self.columns.pairs(table, 1), 0)  # (T_1, T_2, k, u, w_2, w_1)
        return pairs.permute(0, 1, 2, 5, 4, 3).flatten(3).flatten(0, 1).contiguous()

    def block_adjoint(self, grad_block: Tensor) -> Tensor:
        rows, columns, k = self.rows, self.columns, self.problem.query_depth
        x = grad_block.view(rows.tile, columns.tile, k, rows.window, columns.window, self.terms)
        x = rows.add_pairs(x.permute(0, 1, 2, 5, 4, 3), 0)  # (r_1, T_2, k, u, w_2)
        return columns.add_pairs(x, 1)

    def _pack(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        """Split (b, n, h, c) into tiles, and permute and flatten them to (J_1, .., .., c)."""
        tiles = self.columns.tiles(self.rows.tiles(x.unflatten(1, self.sides), 1), 3)
        return tiles.permute(order).flatten(3, 5).flatten(1, 2).contiguous()

    def _unpack(self, packed: Tensor, order: tuple[int, ...]) -> Tensor:
        """The inverse of `_pack`."""
        rows, columns = self.rows, self.columns
        sizes = (-1, rows.num_tiles, rows.tile, columns.num_tiles, columns.tile, self.problem.heads, packed.shape[3])
        tiles = packed.view([sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(7)])
        return tiles.flatten(3, 4).flatten(1, 2)[:, : rows.side, : columns.side].flatten(1, 2)

    def _pack_values(self, values: Tensor) -> Tensor:
        maps = self.rows.pad(values.transpose(2, 3).unflatten(1, self.sides), 1)
        x = self.columns.windows(maps, 2).permute(2, 0, 1, 5, 3, 4)  # (J, b, S_1, w_2, u, v)
        return x.flatten(3, 4).flatten(0, 1)

    def _unpack_values(self, grad_values: Tensor) -> Tensor:
        """The adjoint of `_pack_values`."""
        rows, columns = self.rows, self.columns
        x = grad_values.narrow(1, rows.padding[0], rows.side).unflatten(2, (columns.window, self.terms))
        x = x.unflatten(0, (columns.num_tiles, -1)).permute(1, 2, 0, 4, 5, 3)  # (b, S_1, J, u, v, w_2)
        return columns.add_windows(x, 2).flatten(1, 2).transpose(2, 3)

    def derive_maps(
        self, grad_output: Tensor | None, queries: Tensor, prepared: Prepared, values: Tensor, needs: Needs
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """grad_queries and grad_block are computed from grad_logits."""
        (block,) = prepared
        packed, windows = self._pack(queries, _QUERIES), self._pack_values(values).contiguous()
        grads = None if grad_output is None else self._pack(grad_output, _OUTPUTS)
        wide, rows_of_tile = accumulation_dtype(block.dtype), len(block) * self.problem.heads
        outputs = packed.new_empty(len(packed), len(windows), rows_of_tile, values.shape[2] if needs.output else 0)
        grad_queries = torch.empty_like(packed) if needs.queries else None
        grad_block = torch.zeros_like(block, dtype=wide) if needs.table else None
        grad_values = torch.zeros_like(windows, dtype=wide) if needs.values else None
        for row, tile_queries in enumerate(packed):
            section = row * self.rows.tile, self.rows.window
            window = windows.narrow(1, *section).flatten(1, 2)  # ((J, b), positions of the window, v)
            if needs.output or needs.values:
                logits = torch.bmm(tile_queries, block).view(-1, len(windows), block.shape[2])
            if needs.output:
                torch.bmm(logits.transpose(0, 1), window, out=outputs[row])
            if grads is None:
                continue
            if grad_values is not None:
                grad_window = grad_values.narrow(1, *section)
                grad_window += torch.bmm(logits.permute(1, 2, 0), grads[row]).view(grad_window.shape)
            if grad_queries is None and grad_block is None:
                continue
            grad_logits = torch.bmm(grads[row], window.mT).transpose(0, 1)
            grad_logits = grad_logits.reshape(len(block), -1, block.shape[2])  # (positions, (h, J, b), window)
            if grad_queries is not None:
                torch.bmm(grad_logits, block.mT, out=grad_queries[row])
            if grad_block is not None:
                grad_block += torch.bmm(tile_queries.mT, grad_logits)
        return (
            self._unpack(outputs, _OUTPUTS) if needs.output else None,
            None if grad_queries is None else self._unpack(grad_queries, _QUERIES),
            grad_block,
            None if grad_values is None else self._unpack_values(grad_values),
        )
