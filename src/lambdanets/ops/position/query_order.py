"""Query order: multiply queries by embeddings first, then logits by values, tile by tile.

logits[n,h,m,u] = sum_k q[h,n,k] E[n,k,m,u];  y[h,n,:] = sum_{m,u} logits[n,h,m,u] V[m,:,u].
Cost: h (k + v) u multiply-adds for each pair of a query and a position in the window of its tile, compared with k v u
if lambdas are summed directly, so it is faster for large v. Memory: logits of one row of tiles.

Queries are packed as (positions of the tile, (h, tiles, b), k) and values as ((tiles, b), window, v), so that neither
matrix product needs a copy: logits (positions, (h, tiles, b), window) are batched over positions, and
y ((tiles, b), (positions, h), v) over tiles and examples.
"""

import itertools
import math
from functools import lru_cache

import torch
from torch import Tensor

from lambdanets.ops.position.algorithm import CALL, Algorithm, Cost, NeedsGrad, Prepared, Problem, matmul_work
from lambdanets.ops.position.windows import (
    Tiling,
    make_block,
    make_block_backward,
    pack_outputs,
    pack_queries,
    pack_values,
    unpack_outputs,
    unpack_queries,
    unpack_values,
)
from lambdanets.ops.precision import accumulation_dtype, product_dtype

# Maximum size of the logits of a row of tiles, to fit the cache of a CPU core and of a GPU; larger batches are split.
_LOGITS_BYTES = 8 << 20, 32 << 20
_WORK_PER_COPIED_ELEMENT = 70  # in multiply-adds
# Candidates for the sides of tiles, in addition to the side of the grid.
_TILE_ROWS = (1, 2, 4, 7)
_TILE_COLUMNS = (2, 4, 7, 8, 16, 32)


class QueryOrder(Algorithm):
    name = "query_order"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.dtype = product_dtype(problem.dtype, problem.is_gpu)
        self._tiling = best_tiling(problem.at_least_2d())
        self.batch = _limit_logits_bytes(problem, self._tiling).batch

    def cost(self) -> Cost:
        return _cost(self._tiling)

    def prepare(self, table: Tensor) -> Prepared:
        """Return a block of embeddings ((T_1..T_D), k, w_1, (w_2..w_D, u)) that is used for all tiles."""
        axes = self._tiling.axes
        block = make_block(table if table.ndim - 2 == len(axes) else table.unsqueeze(0), axes)
        return (block.flatten(len(axes) + 2).flatten(0, len(axes) - 1),)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        tiling, p = self._tiling, self._tiling.problem
        block = grad_prepared[0].view(*tiling.tile, p.query_depth, *tiling.window, p.intra_depth)
        table = make_block_backward(block, tiling.axes)
        return table if len(self.problem.grid) > 1 else table.squeeze(0)

    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        tiling = self._tiling
        (block,) = prepared
        queries, values = pack_queries(queries, tiling), pack_values(values, tiling)
        outputs = []
        for tile in tiling.axes[0].tiles():
            positions = tile.num_rows * tiling.positions_per_tile_row
            logits = torch.bmm(queries[tile.rows].flatten(0, 1), block[:positions, :, tile.block].flatten(2))
            logits = logits.view(positions * self.problem.heads, values.shape[0], -1).transpose(0, 1)
            output = torch.bmm(logits, values[:, tile.window].flatten(1, 2))
            outputs.append(output.unflatten(1, (tile.num_rows, -1)))
        return unpack_outputs(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), tiling)

    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs: NeedsGrad
    ) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
        """Recomputes the logits; grad_queries and grad_block are computed from grad_logits."""
        tiling, heads = self._tiling, self.problem.heads
        (block,) = prepared
        queries, values = pack_queries(queries, tiling), pack_values(values, tiling)
        grad_output = pack_outputs(grad_output, tiling)
        wide = accumulation_dtype(block.dtype)
        grad_queries = torch.empty_like(queries) if needs.queries else None
        grad_block = torch.zeros_like(block, dtype=wide) if needs.table else None
        grad_values = torch.zeros_like(values, dtype=wide) if needs.values else None
        num_windows = values.shape[0]
        for tile in tiling.axes[0].tiles():
            positions = tile.num_rows * tiling.positions_per_tile_row
            block_tile = block[:positions, :, tile.block].flatten(2)
            query_tile = queries[tile.rows].flatten(0, 1)  # (positions, (h, J, b), k)
            grad_tile = grad_output[:, tile.rows].flatten(1, 2)  # ((J, b), (positions, h), v)
            if grad_values is not None:
                logits = torch.bmm(query_tile, block_tile).view(positions * heads, num_windows, -1)
                product = torch.bmm(logits.permute(1, 2, 0), grad_tile)
                grad_values[:, tile.window] += product.unflatten(1, (tile.num_window_rows, -1))
            if grad_queries is None and grad_block is None:
                continue
            # (positions, (h, J, b), window)
            grad_logits = torch.bmm(grad_tile, values[:, tile.window].flatten(1, 2).mT).transpose(0, 1)
            grad_logits = grad_logits.contiguous().view(positions, heads * num_windows, -1)
            if grad_queries is not None:
                # view instead of flatten, which may copy
                out = grad_queries[tile.rows].view(positions, *grad_queries.shape[2:])
                torch.bmm(grad_logits, block_tile.transpose(1, 2), out=out)
            if grad_block is not None:
                product = torch.bmm(query_tile.transpose(1, 2), grad_logits)
                grad_block[:positions, :, tile.block] += product.unflatten(2, (tile.num_window_rows, -1))
        return (
            None if grad_queries is None else unpack_queries(grad_queries, tiling),
            None if grad_block is None else (grad_block,),
            None if grad_values is None else unpack_values(grad_values, tiling),
        )


@lru_cache(maxsize=1024)
def best_tiling(problem: Problem) -> Tiling:
    """Return the tiling with the least work, for a problem with at least two axes."""
    rows, *others = problem.grid
    choices = [sorted({min(side, rows) for side in (*_TILE_ROWS, rows)})]
    for side, before, after in zip(others, problem.before[1:], problem.after[1:], strict=True):
        can_tile = before + after < side  # otherwise windows are longer than the axis
        choices.append([*(x for x in _TILE_COLUMNS if can_tile and 2 * x <= side), side])
    tilings = [Tiling(problem, tile) for tile in itertools.product(*choices)]
    limit = _LOGITS_BYTES[problem.is_gpu]
    fitting = [tiling for tiling in tilings if tiling.logits_bytes(1) <= limit] or tilings[:1]
    return min(fitting, key=lambda tiling: _cost(tiling).work)


def _limit_logits_bytes(problem: Problem, tiling: Tiling) -> Problem:
    """Return the problem with the largest batch whose logits of a row of tiles fit the cache."""
    limit = _LOGITS_BYTES[problem.is_gpu]
    return problem.limit_batch(limit // tiling.logits_bytes(1))


def _cost(tiling: Tiling) -> Cost:
    p = tiling.problem
    k, v, heads = p.query_depth, p.value_depth, p.heads
    batch = _limit_logits_bytes(p, tiling).batch
    num_calls = -(-p.batch // batch)
    num_windows = math.prod(tiling.num_tiles) * batch
    logits_elements = 0
    work = CALL * (6.0 * tiling.axes[0].num_tiles + 12)
    for tile in tiling.axes[0].tiles():
        positions = tile.num_rows * tiling.positions_per_tile_row
        window = tile.num_window_rows * tiling.elements_per_window_row
        logits_elements += positions * heads * num_windows * window
        work += matmul_work(positions, heads * num_windows, k, window)
        work += matmul_work(num_windows, positions * heads, window, v)
    block = math.prod(tiling.tile) * k * tiling.window[0] * tiling.elements_per_window_row
    window_elements = num_windows * p.grid[0] * tiling.elements_per_window_row * v
    packed_elements = heads * batch * p.num_positions * (k + v) + window_elements
    work += _WORK_PER_COPIED_ELEMENT * packed_elements
    # Peak memory is in the backward pass: block and its gradient, logits twice and one product.
    elements = 4 * block + 3 * packed_elements
    workspace = p.dtype.itemsize * elements + 3 * tiling.logits_bytes(batch)
    multiply_adds = num_calls * logits_elements * (k + v)
    return Cost(multiply_adds, workspace, num_calls * work)
