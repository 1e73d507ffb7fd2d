"""Row transform: a Fourier transform along the last axis, and pairs of positions along the others.

Along the last axis, of side W, the interaction is a convolution: one product for each frequency f
of a transform of length N. With w = 2 pi / N, rows y, and the sum over their pairs:
    V^[f,y,u] = sum_x V[y,x,u] exp(-i w f x),   R^[f,dy,k,u] = sum_dx R[dy,dx,k,u] exp(i w f dx)
    L^[f,k,y] = sum_{y',u} R^[f, y' - y, k, u] V^[f,y',u]
    lambda[k,y,x] = 1/N sum_f L^[f,k,y] exp(i w f x),   output = sum_k q lambda.
Only plain PyTorch operations (FFTs and their gradients are of contiguous last axes: along other
long axes, MKL 2024.2 corrupts memory on one thread): the algorithm where there is no compiled kernel, and, with transforms
as matrix products, the form of exported graphs. README.md in this folder derives N.

Cost: about (4 F / W) window + F multiply-adds per lambda element (b n k v). A tile of T rows needs
the rows of its window; its pairs have the same offsets as those of every other tile, so they share
a block of R^. Gradients are those of PyTorch, tile by tile. Memory: the lambdas of a tile.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.geometry import pairwise_embeddings, windows
from lambdanets.ops.position.algorithm import Algorithm, BoundPositionAlgorithm
from lambdanets.ops.position.problem import (
    CALL,
    Cost,
    NeedsGrad,
    Prepared,
    Problem,
    matmul_work,
)
from lambdanets.ops.precision import accumulation_dtype

_MAX_MATRIX_SIDE = 128  # longer rows are transformed by torch.fft
_SMOOTH_SIZES = (16, 18, 20, 24, 25, 27, 30, 32)
_NUM_TILES = (1, 2, 4)
_MIN_TILE_ROWS = 4
_LAMBDA_BYTES = 8 << 20, 64 << 20  # of a tile, on a CPU and on a GPU
_SLOWDOWN = 1.3  # compared with query_order at equal work
_WORK_PER_POINT = 200  # of an FFT, in multiply-adds: n log n, but slower than products


class Tile(NamedTuple):
    """Rows start:stop of the first axis and of its window, and the columns of its block."""

    rows: slice
    window: slice
    columns: slice


class Rows(NamedTuple):
    """Sizes of a row transform. grid, before, after: with two or three axes.

    length: N. tile: rows T per tile. depths: query depths whose lambdas are computed at once.
    """

    grid: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    length: int
    tile: int
    depths: int
    uses_fft: bool = False

    @property
    def columns(self) -> int:
        """Positions of the middle axis."""
        return math.prod(self.grid[1:-1])

    @property
    def frequencies(self) -> int:
        return self.length // 2 + 1

    @property
    def covers_axis(self) -> bool:
        return self.tile >= self.grid[0]

    @property
    def window(self) -> int:
        """Rows of a window."""
        return self.grid[0] if self.covers_axis else self.before[0] + self.tile + self.after[0]

    def tiles(self) -> Iterator[Tile]:
        side = self.grid[0]
        if self.covers_axis:
            yield Tile(slice(0, side), slice(0, side), slice(0, side))
            return
        for start in range(0, side, self.tile):
            stop = min(side, start + self.tile)
            first, last = start - self.before[0], stop + self.after[0]
            window = slice(max(0, first), min(side, last))
            yield Tile(slice(start, stop), window, slice(window.start - first, window.stop - first))


def choose_rows(grid: Sequence[int], before: Sequence[int], after: Sequence[int], for_graph: bool) -> Rows:
    """The length of the transform, and the tiles whose windows have the fewest rows."""
    missing = (0,) * (len(grid) == 1)
    grid, before, after = ((*axis, *sides) for axis, sides in zip(
        ((1,) * len(missing), missing, missing), (grid, before, after), strict=True
    ))  # fmt: skip
    minimum = grid[-1] + max(before[-1], after[-1])
    uses_fft = grid[-1] > _MAX_MATRIX_SIDE and not for_graph
    length = minimum | 1  # odd: no Nyquist frequency
    if uses_fft:  # a power of two times factors of 2, 3 and 5, for which FFTs are fast and exact
        step = 1 << max(0, minimum.bit_length() - 5)
        length = step * next(size for size in _SMOOTH_SIZES if size * step >= minimum)
    heights = [-(-grid[0] // n) for n in _NUM_TILES if n == 1 or grid[0] // n >= _MIN_TILE_ROWS]
    candidates = [Rows(grid, before, after, length, rows, 1 << 30, uses_fft) for rows in heights]
    return min(candidates, key=_mean_window)


def _mean_window(rows: Rows) -> float:
    sizes = [tile.window.stop - tile.window.start for tile in rows.tiles()]
    return sum(sizes) / len(sizes)


def prepare(table: Tensor, rows: Rows) -> Prepared:
    """From the table (r_1..r_D, k, u), compute R^ of the pairs of a tile, and the transforms.

    R^ is (f, 2, k, T, S_2, w, S_2, u, 2): real 2 x 2 matrices instead of complex numbers. The
    transforms are ((f, 2), W) and (W, (f, 2)).
    """
    table = table.to(accumulation_dtype(table.dtype))
    if table.ndim == 3:
        table = table.unsqueeze(0)
    real, imaginary = _table_spectra(table, rows)  # (r_1..r_{D-1}, f, k, u)
    matrix = [torch.stack(row, dim=-1) for row in ((real, -imaginary), (imaginary, real))]
    spectra = torch.stack(matrix, dim=-4).flatten(-2).flatten(-4, -2)
    *_, depth, intra_depth = real.shape
    if len(rows.grid) == 3:
        side, first, channels = rows.grid[1], spectra.shape[0], spectra.shape[2]
        spectra = spectra.transpose(0, 1).flatten(1, 2)
        spectra = pairwise_embeddings(spectra, (side,), 1).unflatten(1, (first, channels))
        spectra = spectra.transpose(0, 1)
    else:
        spectra = spectra.unsqueeze(1).unsqueeze(-1)
    # (r_1, S_2, (f, 2, k), (u, 2), S_2) to the windows of each row of a tile
    offset = rows.before[0] if rows.covers_axis else 0  # of the first row of a tile
    padding = rows.tile - 1 - offset, offset + rows.window - spectra.shape[0]
    pairs = windows(F.pad(spectra, [0, 0] * 4 + list(padding)), 0, rows.tile, rows.window).flip(0)
    pairs = pairs.unflatten(3, (intra_depth, 2)).unflatten(2, (-1, 2, depth))
    block = pairs.permute(2, 3, 4, 0, 1, 8, 7, 5, 6).contiguous()
    return (block,) if rows.uses_fft else (block, *_transforms(rows, table))


def _table_spectra(table: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    before, after = rows.before[-1], rows.after[-1]
    axis = table.ndim - 3
    if rows.uses_fft:
        padded = F.pad(table.movedim(axis, -1), [0, rows.length - table.shape[axis]])
        spectra = torch.view_as_real(torch.fft.rfft(padded.roll(-before, -1).contiguous()))
        return spectra[..., 0].movedim(-1, axis), -spectra[..., 1].movedim(-1, axis)
    bases = _basis(rows, range(-before, after + 1), table)
    real, imaginary = (torch.einsum("fd,...dku->...fku", basis, table) for basis in bases)
    return real, imaginary


def _transforms(rows: Rows, like: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-i w f x) for values, and exp(i w f x) / N for lambdas; f > 0 stands also for -f."""
    cosines, sines = _basis(rows, range(rows.grid[-1]), like)
    forward = torch.stack([cosines, -sines], dim=1)
    weights = [1 / rows.length] + [2 / rows.length] * (rows.frequencies - 1)
    inverse = forward * torch.tensor(weights, dtype=like.dtype, device=like.device)[:, None, None]
    return forward.flatten(0, 1), inverse.flatten(0, 1).T.contiguous()


def _basis(rows: Rows, positions: range, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (f, x) of w f x, rounded from float64."""
    steps = [[f * x % rows.length for x in positions] for f in range(rows.frequencies)]
    circle = [2 * math.pi * step / rows.length for step in range(rows.length)]
    functions = [[function(angle) for angle in circle] for function in (math.cos, math.sin)]
    cosines, sines = (
        torch.tensor(
            [[values[step] for step in line] for line in steps],
            dtype=like.dtype,
            device=like.device,
        )
        for values in functions
    )
    return cosines, sines


def transform_values(values: Tensor, prepared: Prepared, rows: Rows) -> Tensor:
    """Transform values (b, n, v, u) to V^ (f, S_1, S_2, u, 2, b, v)."""
    sides = rows.grid[0], rows.columns, rows.grid[-1]
    maps = values.unflatten(1, sides).permute(3, 1, 2, 5, 0, 4)
    if rows.uses_fft:
        spectra = torch.fft.rfft(maps.movedim(0, -1).contiguous(), n=rows.length)
        return torch.view_as_real(spectra).movedim((-2, -1), (0, 4))
    spectra = (prepared[1] @ maps.flatten(1)).unflatten(1, maps.shape[1:])
    return spectra.unflatten(0, (-1, 2)).movedim(1, 4)


def apply_tile(queries: Tensor, block: Tensor, value_spectra: Tensor, prepared: Prepared, rows: Rows) -> Tensor:
    """Compute the output (b, T, S_2, W, h, v) of a tile for some query depths.

    queries: (b, T, S_2, W, h, k). block: (f, 2, k, T, S_2, w, S_2, u, 2), a part of R^.
    value_spectra: (f, w, S_2, u, 2, b, v).
    """
    spectra = block.flatten(5).flatten(1, 4) @ value_spectra.flatten(5).flatten(1, 4)
    spectra = spectra.unflatten(1, (2, -1))  # (f, 2, (k, T, S_2), (b, v))
    if rows.uses_fft:
        spectra = torch.complex(*spectra.movedim(0, -1).contiguous().unbind(0))
        lambdas = torch.fft.irfft(spectra, n=rows.length).narrow(-1, 0, rows.grid[-1])
        lambdas = lambdas.movedim(-1, 0)
    else:
        lambdas = (prepared[2] @ spectra.flatten(0, 1).flatten(1)).unflatten(1, spectra.shape[2:])
    lambdas = lambdas.unflatten(2, value_spectra.shape[5:]).unflatten(1, block.shape[2:5])
    return queries @ lambdas.permute(4, 2, 3, 0, 1, 5)


def row_transform(queries: Tensor, prepared: Prepared, values: Tensor, rows: Rows) -> Tensor:
    """Compute the output (b, h, n, v) from queries (b, h, n, k) and values (b, n, v, u)."""
    value_spectra = transform_values(values, prepared, rows)
    maps = _query_maps(queries, rows)
    outputs = []
    for tile in rows.tiles():
        parts = [
            apply_tile(
                maps[:, tile.rows, ..., depths],
                _part(prepared[0], tile, depths),
                value_spectra[:, tile.window],
                prepared,
                rows,
            )
            for depths in _depths(rows, maps.shape[-1])
        ]
        outputs.append(sum(parts[1:], start=parts[0]))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return output.flatten(1, 3).transpose(1, 2)


def _query_maps(x: Tensor, rows: Rows) -> Tensor:
    return x.transpose(1, 2).unflatten(1, (rows.grid[0], rows.columns, rows.grid[-1]))


def _part(block: Tensor, tile: Tile, depths: slice) -> Tensor:
    return block[:, :, depths, : tile.rows.stop - tile.rows.start, :, tile.columns]


def _depths(rows: Rows, depth: int) -> list[slice]:
    return [slice(k, min(depth, k + rows.depths)) for k in range(0, depth, rows.depths)]


class RowTransform(Algorithm):
    name = "row_transform"

    def cost(self, problem: Problem) -> Cost:
        return _cost(problem)

    def bind(self, problem: Problem) -> "BoundRowTransform":
        return BoundRowTransform(problem)


class BoundRowTransform(BoundPositionAlgorithm):
    def __init__(self, problem: Problem) -> None:
        batch, self.rows = _fit_cache(problem)
        super().__init__(problem.limit_batch(batch), accumulation_dtype(problem.dtype))

    def prepare(self, table: Tensor) -> Prepared:
        return prepare(table, self.rows)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        p = self.problem
        zeros = grad_prepared[0].new_zeros(*p.scope, p.query_depth, p.intra_depth)
        (grad_table,) = _adjoint(lambda table: prepare(table, self.rows)[0], zeros)(*grad_prepared)
        return grad_table

    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        return row_transform(queries, prepared, values, self.rows)

    def position_gradients(
        self,
        grad_output: Tensor,
        queries: Tensor,
        prepared: Prepared,
        values: Tensor,
        needs: NeedsGrad,
    ) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
        rows, block = self.rows, prepared[0]
        value_spectra = transform_values(values, prepared, rows)
        maps, grad_maps = _query_maps(queries, rows), _query_maps(grad_output, rows)
        grad_queries, grad_spectra = torch.zeros_like(maps), torch.zeros_like(value_spectra)
        grad_block = torch.zeros_like(block)
        apply = partial(apply_tile, prepared=prepared, rows=rows)
        for tile in rows.tiles():
            for depths in _depths(rows, maps.shape[-1]):
                operands = (
                    maps[:, tile.rows, ..., depths],
                    _part(block, tile, depths),
                    value_spectra[:, tile.window],
                )
                grad_q, grad_b, grad_v = _adjoint(apply, *operands)(grad_maps[:, tile.rows])
                grad_queries[:, tile.rows, ..., depths] = grad_q
                _part(grad_block, tile, depths).add_(grad_b)
                grad_spectra[:, tile.window] += grad_v
        grad_values = None
        if needs.values:
            transform = partial(transform_values, prepared=prepared, rows=rows)
            (grad_values,) = _adjoint(transform, values)(grad_spectra)
        grad_queries = grad_queries.flatten(1, 3).transpose(1, 2)
        return (
            grad_queries if needs.queries else None,
            (grad_block,) if needs.table else None,
            grad_values,
        )


def _adjoint(function: Callable[..., Tensor], *operands: Tensor) -> Callable[..., tuple[Any, ...]]:
    """The function from the gradient of the output of `function` to those of its operands."""
    pullback: Callable[..., tuple[Any, ...]] = torch.func.vjp(function, *operands)[1]
    return pullback


@lru_cache(maxsize=1024)
def _fit_cache(problem: Problem) -> tuple[int, Rows]:
    """The examples per call and the tiles for which the lambdas of a tile fit the cache."""
    p = problem
    rows = choose_rows(p.grid, p.before, p.after, for_graph=False)
    limit = p.select_by_device(*_LAMBDA_BYTES)
    bytes_per_depth = 4 * rows.columns * rows.grid[-1] * p.value_depth
    # Products of at least 64 columns are fast.
    batch = max(1, limit // (bytes_per_depth * p.query_depth), 64 // p.value_depth)
    batch = min(p.batch, batch)
    tile = max(1, min(rows.tile, limit // (bytes_per_depth * p.query_depth * batch)))
    depths = max(1, min(p.query_depth, limit // (bytes_per_depth * batch)))
    return batch, rows._replace(tile=tile, depths=depths)


def multiply_adds(rows: Rows, depth: int, value_depth: int, intra_depth: int) -> float:
    """Multiply-adds per example, before the queries are applied."""
    frequencies, lines = rows.frequencies, rows.grid[0] * rows.columns
    per_line = 2 * frequencies * rows.grid[-1]
    if rows.uses_fft:
        per_line = round(1.25 * rows.length * math.log2(rows.length))
    transforms = per_line * lines * value_depth * (depth + intra_depth)
    pairs = lines * _mean_window(rows) * rows.columns
    return transforms + 4 * frequencies * pairs * depth * intra_depth * value_depth


def _cost(problem: Problem) -> Cost:
    p = problem
    batch, rows = _fit_cache(p)
    k, v, columns = p.query_depth, p.value_depth, rows.columns
    products = p.batch * multiply_adds(rows, k, v, p.intra_depth)
    applied = p.batch * p.num_positions * p.heads * k * v
    calls = -(-p.batch // batch) * (12 + 8 * -(-rows.grid[0] // rows.tile) * -(-k // rows.depths))
    work = matmul_work(1, products / 64**2, 64, 64) + CALL * calls
    work += matmul_work(p.batch * p.num_positions, p.heads, k, v)
    if rows.uses_fft:
        points = rows.length * rows.grid[0] * columns * v * (k + p.intra_depth)
        work += _WORK_PER_POINT * p.batch * points
    frequencies, itemsize = rows.frequencies, max(4, p.dtype.itemsize)
    block = frequencies * 4 * k * rows.tile * columns * rows.window * columns * p.intra_depth
    spectra = 2 * frequencies * rows.grid[0] * columns * p.intra_depth * batch * v
    lambdas = rows.tile * columns * rows.length * rows.depths * batch * v
    packed = batch * p.num_positions * p.heads * (k + v)
    workspace = itemsize * (6 * block + 4 * spectra + 8 * lambdas + 2 * packed)
    return Cost(products + applied, round(workspace), _SLOWDOWN * work)
