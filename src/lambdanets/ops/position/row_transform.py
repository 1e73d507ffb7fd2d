"""Row transform: a Fourier transform along the last axes, and pairs of positions along the first one.

A sequence is one row, a map has rows y, and a volume has slices y whose rows follow one another in one long row, with a
gap in which nothing overlaps. Along a row, the interaction is a convolution: one product for each frequency f of a
transform of length N. With w = 2 pi / N:
    V^[f,y,u] = sum_x V[y,x,u] exp(-i w f x),   R^[f,dy,k,u] = sum_dx R[dy,dx,k,u] exp(i w f dx)
    L^[f,k,y] = sum_{y',u} R^[f, y' - y, k, u] V^[f,y',u]
    lambda[k,y,x] = 1/N sum_f L^[f,k,y] exp(i w f x),   output = sum_k q lambda.
Only plain PyTorch operations: the algorithm where there is no compiled kernel, and, with transforms as matrix products,
the form of exported graphs. FFTs and their gradients are of contiguous last axes: along other long axes, MKL 2024.2
corrupts memory on one thread. README.md in this folder derives N.

Cost: about (4 F / W) window + F multiply-adds per lambda element (b n k v). A tile of T rows needs the rows of its
window; its pairs have the same offsets as those of every other tile, so they share a block of R^. Gradients use the
adjoints of both transforms, each of which is the other one up to the weights of the frequencies. Memory: the block, and
the lambdas of a tile.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.algorithm import CALL, Algorithm, Cost, NeedsGrad, Prepared, Problem, matmul_work
from lambdanets.ops.position.windows import Axis, Tile, pad_table, sum_pairs
from lambdanets.ops.precision import accumulation_dtype
from lambdanets.ops.tracing import unfold

_MAX_MATRIX_SIDE = 128  # longer rows are transformed by torch.fft
_SMOOTH_SIZES = (16, 18, 20, 24, 25, 27, 30, 32)
_NUM_TILES = (1, 2, 4)
_MIN_TILE_ROWS = 4
_LAMBDA_BYTES = 8 << 20, 64 << 20  # of a tile, on a CPU and on a GPU
_BLOCK_BYTES = 64 << 20
_SLOWDOWN = 1.3  # compared with query_order at equal work
_WORK_PER_POINT = 200  # of an FFT, in multiply-adds: n log n, but slower than products


class Rows(NamedTuple):
    """Sizes of a row transform. grid, before, after: (rows, rows of a slice, side), 1 and 0 for missing axes.

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
    def pitch(self) -> int:
        """Distance of the rows of a slice in the long row."""
        _, height, side = self.grid
        return side if height == 1 else side + max(self.before[2], self.after[2])

    @property
    def frequencies(self) -> int:
        return self.length // 2 + 1

    @property
    def axis(self) -> Axis:
        """The tiles of the first axis."""
        return Axis(self.grid[0], self.before[0], self.after[0], self.tile)


def choose_rows(grid: Sequence[int], before: Sequence[int], after: Sequence[int], for_graph: bool) -> Rows:
    """The length of the transform, and the tiles whose windows have the fewest rows."""
    if len(grid) < 3:  # a sequence is a row, a map has one row per slice
        rows = ((1, 1), (0, 0), (0, 0)) if len(grid) == 1 else ((grid[0], 1), (before[0], 0), (after[0], 0))
        grid, before, after = ((*row, sides[-1]) for row, sides in zip(rows, (grid, before, after), strict=True))
    sizes = tuple(grid), tuple(before), tuple(after)
    pitch = Rows(*sizes, 0, 0, 0).pitch
    row = (grid[1] - 1) * pitch + grid[2]
    # Positions that wrap around lie outside of the row, where they are not used (README.md, "Why N").
    minimum = row + max(sides[1] * pitch + sides[2] for sides in (before, after))
    uses_fft = row > _MAX_MATRIX_SIDE and not for_graph
    length = minimum | 1  # odd: no Nyquist frequency
    if uses_fft:  # a power of two times factors of 2, 3 and 5, for which FFTs are fast and exact
        step = 1 << max(0, minimum.bit_length() - 5)
        length = step * next(size for size in _SMOOTH_SIZES if size * step >= minimum)
    heights = [-(-grid[0] // n) for n in _NUM_TILES if n == 1 or grid[0] // n >= _MIN_TILE_ROWS]
    return min((Rows(*sizes, length, height, 1 << 30, uses_fft) for height in heights), key=_mean_window)


def _mean_window(rows: Rows) -> float:
    return sum(tile.num_window_rows for tile in rows.axis.tiles()) / rows.axis.num_tiles


def prepare(table: Tensor, rows: Rows) -> Prepared:
    """From the table (r_1..r_D, k, u), compute R^ of the pairs of a tile, and the transforms.

    R^ is (f, 2, k, T, w, u, 2): real 2 x 2 matrices instead of complex numbers. The transforms are ((f, 2), x) and
    (x, (f, 2)).
    """
    table = table.to(accumulation_dtype(table.dtype)).reshape(*_scope(rows), *table.shape[-2:])
    real, imaginary = _table_spectra(table, rows)  # (r_1, f, k, u)
    matrix = [torch.stack(row, dim=-1) for row in ((real, -imaginary), (imaginary, real))]
    spectra = torch.stack(matrix, dim=-4)  # (r_1, f, 2, k, u, 2)
    padded = pad_table(spectra.flatten(1), [rows.axis]).unflatten(1, spectra.shape[1:])
    block = unfold(padded, 0, rows.axis.tile, rows.axis.window).flip(0).permute(1, 2, 3, 0, 6, 4, 5).contiguous()
    return (block,) if rows.uses_fft else (block, *_transforms(rows, table))


def prepare_adjoint(grad_block: Tensor, rows: Rows) -> Tensor:
    """The adjoint of `prepare`, (r_1, r_2, r_3, k, u)."""
    spectra = sum_pairs(grad_block.permute(3, 4, 0, 1, 2, 5, 6), rows.axis, 0)  # (r_1, f, 2, k, u, 2)
    first, second = spectra.unbind(2)  # (r_1, f, k, u, 2)
    return _table_adjoint(first[..., 0] + second[..., 1], second[..., 0] - first[..., 1], rows)


def _scope(rows: Rows) -> tuple[int, ...]:
    return tuple(before + 1 + after for before, after in zip(rows.before, rows.after, strict=True))


def _table_spectra(table: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Real and imaginary part (r_1, f, k, u) of R^."""
    if rows.uses_fft:
        _, height, width = _scope(rows)
        lines = table.permute(0, 3, 4, 1, 2)  # (r_1, k, u, r_2, r_3)
        lines = lines if height == 1 else F.pad(lines, [0, rows.pitch - width])
        padded = F.pad(lines.flatten(3), [0, rows.length - lines.shape[3] * lines.shape[4]])
        spectra = torch.fft.rfft(padded.roll(-_center(rows), -1).contiguous()).movedim(3, 1)
        return spectra.real, -spectra.imag
    bases = _basis(rows, _offsets(rows), table)
    real, imaginary = (torch.einsum("fd,rdku->rfku", basis, table.flatten(1, 2)) for basis in bases)
    return real, imaginary


def _table_adjoint(grad_real: Tensor, grad_imaginary: Tensor, rows: Rows) -> Tensor:
    _, height, width = _scope(rows)
    if rows.uses_fft:
        spectra = torch.complex(grad_real, -grad_imaginary).movedim(1, -1) / _weights(rows, grad_real).flatten()
        lines = torch.fft.irfft(spectra.contiguous(), n=rows.length).roll(_center(rows), -1)
        pitch = width if height == 1 else rows.pitch
        lines = F.pad(lines, [0, height * pitch - rows.length]).unflatten(-1, (height, pitch))[..., :width]
        return lines.permute(0, 3, 4, 1, 2)
    cosines, sines = _basis(rows, _offsets(rows), grad_real)
    table = torch.einsum("fd,rfku->rdku", cosines, grad_real) + torch.einsum("fd,rfku->rdku", sines, grad_imaginary)
    return table.unflatten(1, (height, width))


def _center(rows: Rows) -> int:
    """Index of offset 0 in a row of the table."""
    return rows.before[1] * rows.pitch + rows.before[2]


def _offsets(rows: Rows) -> list[int]:
    _, height, width = _scope(rows)
    return [y * rows.pitch + x - _center(rows) for y in range(height) for x in range(width)]


def _transforms(rows: Rows, like: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-i w f x) for values, and exp(i w f x) with weights for lambdas."""
    _, height, side = rows.grid
    cosines, sines = _basis(rows, [y * rows.pitch + x for y in range(height) for x in range(side)], like)
    forward = torch.stack([cosines, -sines], dim=1)
    inverse = forward * _weights(rows, like)
    return forward.flatten(0, 1), inverse.flatten(0, 1).T.contiguous()


def _weights(rows: Rows, like: Tensor) -> Tensor:
    """Weights (f, 1, 1) of the frequencies: 2 / N, because f stands also for -f, but 1 / N for those without a pair."""
    singles = (0, rows.length / 2)
    weights = [(1 if f in singles else 2) / rows.length for f in range(rows.frequencies)]
    return torch.tensor(weights, dtype=like.dtype, device=like.device)[:, None, None]


def _basis(rows: Rows, positions: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (f, x) of w f x, rounded from float64."""
    angles = 2 * math.pi / rows.length * (np.outer(range(rows.frequencies), positions) % rows.length)
    cosines, sines = (torch.tensor(f(angles), dtype=like.dtype, device=like.device) for f in (np.cos, np.sin))
    return cosines, sines


def _to_frequencies(maps: Tensor, prepared: Prepared, rows: Rows) -> Tensor:
    """Transform (x, m) to (f, 2, m)."""
    if not rows.uses_fft:
        return (prepared[1] @ maps).unflatten(0, (-1, 2))
    _, height, side = rows.grid
    slices = F.pad(maps.T.unflatten(1, (height, side)), [0, rows.pitch - side]).flatten(1)
    return torch.view_as_real(torch.fft.rfft(slices.contiguous(), n=rows.length)).movedim(0, -1)


def _to_positions(spectra: Tensor, prepared: Prepared, rows: Rows) -> Tensor:
    """Transform (f, 2, m) back to (x, m)."""
    if not rows.uses_fft:
        return prepared[2] @ spectra.flatten(0, 1)
    _, height, side = rows.grid
    spectra = torch.complex(*spectra.permute(1, 2, 0).contiguous().unbind(0))
    slices = torch.fft.irfft(spectra, n=rows.length)[:, : height * rows.pitch]
    return slices.unflatten(1, (height, rows.pitch))[..., :side].flatten(1).T


def transform_values(values: Tensor, prepared: Prepared, rows: Rows) -> Tensor:
    """Transform values (b, n, v, u) to V^ (f, S_1, u, 2, b, v)."""
    maps = values.unflatten(1, (rows.grid[0], -1)).permute(2, 1, 4, 0, 3)  # (x, S_1, u, b, v)
    spectra = _to_frequencies(maps.flatten(1), prepared, rows)
    return spectra.unflatten(2, maps.shape[1:]).movedim(1, 3)


def transform_adjoint(grad_spectra: Tensor, prepared: Prepared, rows: Rows) -> Tensor:
    """The adjoint of `transform_values`."""
    spectra = grad_spectra.movedim(3, 1)  # (f, 2, S_1, u, b, v)
    maps = _to_positions(spectra.flatten(2) / _weights(rows, spectra), prepared, rows)
    maps = maps.unflatten(1, spectra.shape[2:])
    return maps.permute(3, 1, 0, 4, 2).flatten(1, 2)


def _lambdas(block: Tensor, value_spectra: Tensor, prepared: Prepared, rows: Rows) -> Tensor:
    """Compute lambdas (b, T, x, k, v) from a part of R^ and V^ (f, w, u, 2, b, v) in the window of a tile."""
    spectra = block.flatten(4).flatten(1, 3) @ value_spectra.flatten(4).flatten(1, 3)
    lambdas = _to_positions(spectra.unflatten(1, (2, -1)).flatten(2), prepared, rows)
    return lambdas.unflatten(1, (*block.shape[2:4], *value_spectra.shape[4:])).permute(3, 2, 0, 1, 4)


def row_transform(queries: Tensor, prepared: Prepared, values: Tensor, rows: Rows) -> Tensor:
    """Compute the output (b, h, n, v) from queries (b, h, n, k) and values (b, n, v, u)."""
    value_spectra = transform_values(values, prepared, rows)
    maps = _query_maps(queries, rows)
    outputs = []
    for tile in rows.axis.tiles():
        parts = [
            maps[:, tile.rows, ..., depths]
            @ _lambdas(_part(prepared[0], tile, depths), value_spectra[:, tile.window], prepared, rows)
            for depths in _depths(rows, maps.shape[-1])
        ]
        outputs.append(sum(parts[1:], start=parts[0]))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return output.flatten(1, 2).transpose(1, 2)


def _query_maps(x: Tensor, rows: Rows) -> Tensor:
    return x.transpose(1, 2).unflatten(1, (rows.grid[0], -1))


def _part(block: Tensor, tile: Tile, depths: slice) -> Tensor:
    return block[:, :, depths, : tile.num_rows, tile.block]


def _depths(rows: Rows, depth: int) -> list[slice]:
    return [slice(k, min(depth, k + rows.depths)) for k in range(0, depth, rows.depths)]


class RowTransform(Algorithm):
    name = "row_transform"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.batch, self.rows = _fit_memory(problem)

    def cost(self) -> Cost:
        return _cost(self.problem)

    def prepare(self, table: Tensor) -> Prepared:
        return prepare(table, self.rows)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        p = self.problem
        return prepare_adjoint(grad_prepared[0], self.rows).reshape(*p.scope, p.query_depth, p.intra_depth)

    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        return row_transform(queries, prepared, values, self.rows)

    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs: NeedsGrad
    ) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
        rows, block = self.rows, prepared[0]
        value_spectra = transform_values(values, prepared, rows)
        maps, grad_maps = _query_maps(queries, rows), _query_maps(grad_output, rows)
        grad_queries, grad_block, grad_spectra = (
            torch.zeros_like(x) if needed else None
            for x, needed in zip((maps, block, value_spectra), needs[:3], strict=True)
        )
        weights = _weights(rows, block)
        for tile in rows.axis.tiles():
            tile_spectra, grad_tile = value_spectra[:, tile.window], grad_maps[:, tile.rows]
            for depths in _depths(rows, maps.shape[-1]):
                part = _part(block, tile, depths)
                if grad_queries is not None:
                    lambdas = _lambdas(part, tile_spectra, prepared, rows)
                    grad_queries[:, tile.rows, ..., depths] = grad_tile @ lambdas.mT
                if grad_block is None and grad_spectra is None:
                    continue
                grad_lambdas = maps[:, tile.rows, ..., depths].mT @ grad_tile  # (b, T, x, k, v)
                grad_lambdas = grad_lambdas.permute(2, 3, 1, 0, 4).flatten(1)
                grad = (_to_frequencies(grad_lambdas, prepared, rows) * weights).flatten(1)
                grad = grad.unflatten(1, (part.shape[1:4].numel(), -1))  # (f, (2, k, T), (b, v))
                if grad_block is not None:
                    product = grad @ tile_spectra.flatten(4).flatten(1, 3).mT
                    _part(grad_block, tile, depths).add_(product.view(part.shape))
                if grad_spectra is not None:
                    product = part.flatten(4).flatten(1, 3).mT @ grad
                    grad_spectra[:, tile.window] += product.view(tile_spectra.shape)
        return (
            None if grad_queries is None else grad_queries.flatten(1, 2).transpose(1, 2),
            None if grad_block is None else (grad_block,),
            None if grad_spectra is None else transform_adjoint(grad_spectra, prepared, rows),
        )


@lru_cache(maxsize=1024)
def _fit_memory(problem: Problem) -> tuple[int, Rows]:
    """The examples per call and the tiles for which the lambdas of a tile fit the cache, and the block memory."""
    p = problem
    rows = choose_rows(p.grid, p.before, p.after, for_graph=False)
    limit = _LAMBDA_BYTES[p.is_gpu]
    bytes_per_depth = 4 * (p.num_positions // rows.grid[0]) * p.value_depth
    # Products of at least 64 columns are fast.
    batch = max(1, limit // (bytes_per_depth * p.query_depth), 64 // p.value_depth)
    batch = min(p.batch, batch)
    tile = max(1, min(rows.tile, limit // (bytes_per_depth * p.query_depth * batch)))
    rows = rows._replace(tile=tile, depths=max(1, min(p.query_depth, limit // (bytes_per_depth * batch))))
    while rows.tile > 1 and 4 * _block_elements(rows, p) > _BLOCK_BYTES:
        rows = rows._replace(tile=rows.tile // 2)
    return batch, rows


def _block_elements(rows: Rows, problem: Problem) -> int:
    return 4 * rows.frequencies * problem.query_depth * rows.tile * rows.axis.window * problem.intra_depth


def multiply_adds(rows: Rows, depth: int, value_depth: int, intra_depth: int) -> float:
    """Multiply-adds per example, before the queries are applied."""
    lines, height, side = rows.grid
    per_line: float = 2 * rows.frequencies * height * side
    if rows.uses_fft:
        per_line = 1.25 * rows.length * math.log2(rows.length)
    transforms = per_line * lines * value_depth * (depth + intra_depth)
    return transforms + 4 * rows.frequencies * lines * _mean_window(rows) * depth * intra_depth * value_depth


def _cost(problem: Problem) -> Cost:
    p = problem
    batch, rows = _fit_memory(p)
    k, v, lines = p.query_depth, p.value_depth, rows.grid[0]
    products = p.batch * multiply_adds(rows, k, v, p.intra_depth)
    applied = p.batch * p.num_positions * p.heads * k * v
    calls = -(-p.batch // batch) * (12 + 8 * rows.axis.num_tiles * -(-k // rows.depths))
    work = matmul_work(products / 64**3, 64, 64, 64) + CALL * calls
    work += matmul_work(p.batch * p.num_positions, p.heads, k, v)
    if rows.uses_fft:
        work += _WORK_PER_POINT * p.batch * rows.length * lines * v * (k + p.intra_depth)
    spectra = 2 * rows.frequencies * lines * p.intra_depth * batch * v
    lambdas = rows.tile * rows.length * rows.depths * batch * v
    packed = batch * p.num_positions * p.heads * (k + v)
    elements = 6 * _block_elements(rows, p) + 4 * spectra + 8 * lambdas + 2 * packed
    return Cost(products + applied, accumulation_dtype(p.dtype).itemsize * elements, _SLOWDOWN * work)
