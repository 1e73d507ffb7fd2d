"""Row transform: a Fourier transform along the rows of a map, and pairs of rows along its columns.

Along a row, the interaction is a convolution: one product for each frequency f of a transform of length N. With
w = 2 pi / N:
    V^[f,y,u] = sum_x V[y,x,u] exp(-i w f x),   R^[f,dy,k,u] = sum_dx R[dy,dx,k,u] exp(i w f dx)
    L^[f,k,y] = sum_{y',u} R^[f, y' - y, k, u] V^[f,y',u]
    lambda[k,y,x] = 1/N sum_f L^[f,k,y] exp(i w f x),   output = sum_k q lambda.
Only plain PyTorch operations, with transforms as matrix products: the algorithm for large windows where there is no
compiled kernel, and the form of exported graphs. README.md in this folder derives N.

Cost: about (4 F / W) window + 2 F multiply-adds per lambda element (b n k v), with W positions of a row and F
frequencies. A tile of T rows needs the rows of its window; its pairs have the same offsets as those of every other
tile, so they share a block of R^. Memory: the block, and the lambdas of a tile.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lambdanets.ops.position.algorithm import CALL, Cost, Needs, Prepared, matmul_work
from lambdanets.ops.position.maps import Axis, MapAlgorithm, Maps
from lambdanets.ops.precision import accumulation_dtype

_LAMBDA_BYTES = 8 << 20, 64 << 20  # of a tile, on a CPU and on a GPU
_BLOCK_BYTES = 64 << 20
_SLOWDOWN = 1.3  # compared with query_order at equal work


def _length(columns: Axis) -> int:
    """N. Positions that wrap around lie outside of the row, where they are not used (README.md, "Why N")."""
    return (columns.side + max(columns.before, columns.after)) | 1  # odd: no Nyquist frequency


def _frequencies(columns: Axis) -> int:
    return _length(columns) // 2 + 1


def _all_tiles(maps: Maps) -> list[Maps]:
    """With one tile of all rows, with two tiles, and so on."""
    side = maps.rows.side
    heights = dict.fromkeys(-(-side // 2**i) for i in range(side.bit_length() + 1))
    return [maps._replace(rows=maps.rows._replace(tile=height)) for height in heights]


def tiles_of_graph(maps: Maps) -> Maps:
    """With the tiles that have the fewest pairs of rows, at most four."""
    tilings = sorted(_all_tiles(maps)[:3], key=lambda tiled: _pairs_of_rows(tiled.rows))
    return tilings[0]  # dynamo of PyTorch 2.11 cannot trace min with a key


def _pairs_of_rows(axis: Axis) -> int:
    return axis.num_tiles * axis.tile * axis.window


def table_block(table: Tensor, maps: Maps) -> Tensor:
    """R^ of the pairs of a tile (f, 2, k, T, w, u, 2), real 2 x 2 matrices, from a table (r_y, r_x, k, u)."""
    table = table.to(accumulation_dtype(table.dtype))
    spectra = torch.einsum("fijd,rdku->rfikuj", _offset_rotations(maps.columns, table), table)
    return maps.rows.pairs(spectra, 0).permute(1, 2, 3, 0, 6, 4, 5).contiguous()  # of (T, f, 2, k, u, 2, w)


def transforms(columns: Axis, like: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-i w f x) for values, ((f, 2), x), and exp(i w f x) / N for lambdas, (x, (f, 2)).

    A frequency f > 0 stands also for -f.
    """
    forward = _rotations(columns, range(columns.side), like)[:, 0]
    weights = torch.full_like(forward[:, :1, :1], 2 / _length(columns))
    weights[0] /= 2
    return forward.flatten(0, 1), (forward * weights).flatten(0, 1).T.contiguous()


def _offset_rotations(columns: Axis, like: Tensor) -> Tensor:
    return _rotations(columns, range(-columns.before, columns.after + 1), like)


def _rotations(columns: Axis, positions: Sequence[int], like: Tensor) -> Tensor:
    """The products with exp(i w f x) as matrices (f, 2, 2, x), rounded from float64."""
    n = _length(columns)
    angles = 2 * math.pi / n * (np.outer(range(_frequencies(columns)), positions) % n)
    cosines, sines = np.cos(angles), np.sin(angles)
    matrices = np.stack([np.stack([cosines, -sines], axis=1), np.stack([sines, cosines], axis=1)], axis=1)
    return torch.tensor(matrices, dtype=like.dtype, device=like.device)


def transform_values(values: Tensor, forward: Tensor, maps: Maps) -> Tensor:
    """Transform values (b, n, v, u) to V^ (f, S_1, u, 2, b, v), with the rows that complete the windows."""
    x = values.unflatten(1, (maps.rows.side, maps.columns.side)).permute(2, 1, 4, 0, 3)  # (x, S_1, u, b, v)
    spectra = (forward @ x.flatten(1)).unflatten(0, (-1, 2)).unflatten(2, x.shape[1:]).movedim(1, 3)
    return maps.rows.pad(spectra, 1)


def transform_adjoint(grad_spectra: Tensor, forward: Tensor, maps: Maps) -> Tensor:
    """The adjoint of `transform_values`."""
    spectra = grad_spectra.narrow(1, maps.rows.padding[0], maps.rows.side).movedim(3, 1)  # (f, 2, S_1, u, b, v)
    x = (forward.T @ spectra.flatten(0, 1).flatten(1)).unflatten(1, spectra.shape[2:])
    return x.permute(3, 1, 0, 4, 2).flatten(1, 2)


def _lambdas(block: Tensor, window: Tensor, inverse: Tensor) -> Tensor:
    """Compute lambdas (b, T, x, k, v) from R^ and V^ (f, w, u, 2, b, v) in the window of a tile."""
    spectra = block.flatten(4).flatten(1, 3) @ window.flatten(4).flatten(1, 3)  # (f, (2, k, T), (b, v))
    lambdas = inverse @ spectra.unflatten(1, (2, -1)).flatten(2).flatten(0, 1)
    return lambdas.unflatten(1, (*block.shape[2:4], *window.shape[4:])).permute(3, 2, 0, 1, 4)


def _tile_rows(x: Tensor, maps: Maps) -> tuple[Tensor, ...]:
    """Split (b, n, h, c) into tiles (b, T, x, h, c)."""
    return maps.rows.tiles(x.unflatten(1, (maps.rows.side, maps.columns.side)), 1).unbind(1)


def _join_rows(tiles: Sequence[Tensor], maps: Maps) -> Tensor:
    """The inverse of `_tile_rows`."""
    return torch.cat(list(tiles), dim=1).narrow(1, 0, maps.rows.side).flatten(1, 2)


def row_transform(queries: Tensor, prepared: Prepared, values: Tensor, maps: Maps) -> Tensor:
    """Compute the output (b, n, h, v) from queries (b, n, h, k) and values (b, n, v, u)."""
    block, forward, inverse = prepared
    spectra, outputs = transform_values(values, forward, maps), []
    for i, tile in enumerate(_tile_rows(queries, maps)):
        window = spectra.narrow(1, i * maps.rows.tile, maps.rows.window)
        outputs.append(tile @ _lambdas(block, window, inverse))
    return _join_rows(outputs, maps)


class RowTransform(MapAlgorithm):
    name = "row_transform"

    def tilings(self, maps: Maps) -> list[tuple[Maps, int]]:
        """With tiles whose block of R^ fits the memory, and examples whose lambdas fit the cache."""
        p, candidates = self.problem, _all_tiles(maps)
        fitting = [tiled for tiled in candidates if 4 * self._block_elements(tiled) <= _BLOCK_BYTES]
        tilings = []
        for tiled in fitting or candidates[-1:]:
            lambda_bytes = 4 * tiled.rows.tile * maps.columns.side * p.value_depth * p.query_depth * maps.slices.side
            # Products of at least 64 columns are fast.
            batch = max(1, _LAMBDA_BYTES[p.is_gpu] // lambda_bytes, 64 // p.value_depth)
            tilings.append((tiled, min(p.batch, batch)))
        return tilings

    def tiled_cost(self, maps: Maps, batch: int) -> Cost:
        p, (height, width), count = self.problem, self.sides, batch * maps.slices.side
        k, v, num_maps = p.query_depth, p.value_depth, p.batch * maps.slices.side
        products = num_maps * multiply_adds(maps, k, v, self.terms)
        applied = num_maps * height * width * p.heads * k * v
        work = matmul_work(products / 64**3, 64, 64, 64)
        work += CALL * -(-p.batch // batch) * (12 + 8 * maps.rows.num_tiles)
        work += matmul_work(num_maps * height * width, p.heads, k, v)
        matrices = _length(maps.columns) * width
        spectra = 2 * _frequencies(maps.columns) * height * self.terms * count * v
        lambdas = maps.rows.tile * _length(maps.columns) * k * count * v
        packed = count * height * width * p.heads * (k + v)
        elements = 6 * self._block_elements(maps) + 4 * (matrices + spectra) + 8 * lambdas + 2 * packed
        return Cost(products + applied, self.dtype.itemsize * elements, _SLOWDOWN * work)

    def _block_elements(self, maps: Maps) -> int:
        pairs = maps.rows.tile * maps.rows.window
        return 4 * _frequencies(maps.columns) * pairs * self.problem.query_depth * self.terms

    def block(self, table: Tensor) -> Tensor:
        return table_block(table, self.maps)

    def block_adjoint(self, grad_block: Tensor) -> Tensor:
        spectra = self.maps.rows.add_pairs(grad_block.permute(3, 0, 1, 2, 5, 6, 4), 0)
        return torch.einsum("fijd,rfikuj->rdku", _offset_rotations(self.maps.columns, spectra), spectra)

    def prepare(self, table: Tensor) -> Prepared:
        return (*super().prepare(table), *transforms(self.maps.columns, table))

    def derive_maps(
        self, grad_output: Tensor | None, queries: Tensor, prepared: Prepared, values: Tensor, needs: Needs
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        output = row_transform(queries, prepared, values, self.maps) if needs.output else None
        if grad_output is None:
            return output, None, None, None
        maps, (block, forward, inverse) = self.maps, prepared
        spectra, matrices = transform_values(values, forward, maps), block.flatten(4).flatten(1, 3)
        grad_queries: list[Tensor] = []
        grad_block = torch.zeros_like(matrices) if needs.table else None
        grad_spectra = torch.zeros_like(spectra) if needs.values else None
        tiles = zip(_tile_rows(queries, maps), _tile_rows(grad_output, maps), strict=True)
        for i, (tile, grad_tile) in enumerate(tiles):
            section = i * maps.rows.tile, maps.rows.window
            window = spectra.narrow(1, *section)
            if needs.queries:
                grad_queries.append(grad_tile @ _lambdas(block, window, inverse).mT)
            if grad_block is None and grad_spectra is None:
                continue
            grad_lambdas = (tile.mT @ grad_tile).permute(2, 3, 1, 0, 4)  # (x, k, T, b, v)
            grad = (inverse.T @ grad_lambdas.flatten(1)).unflatten(0, (-1, 2))
            grad = grad.unflatten(2, (-1, window.shape[4:].numel())).flatten(1, 2)  # (f, (2, k, T), (b, v))
            if grad_block is not None:
                grad_block += grad @ window.flatten(4).flatten(1, 3).mT
            if grad_spectra is not None:
                grad_window = grad_spectra.narrow(1, *section)
                grad_window += (matrices.mT @ grad).view(window.shape)
        return (
            output,
            _join_rows(grad_queries, maps) if grad_queries else None,
            None if grad_block is None else grad_block.view(block.shape),
            None if grad_spectra is None else transform_adjoint(grad_spectra, forward, maps),
        )


def multiply_adds(maps: Maps, depth: int, value_depth: int, intra_depth: int) -> float:
    """Multiply-adds for a map, before the queries are applied."""
    frequencies = _frequencies(maps.columns)
    transformed = 2 * frequencies * maps.columns.side * maps.rows.side * (depth + intra_depth)
    pairs = 4 * frequencies * _pairs_of_rows(maps.rows) * depth * intra_depth
    return (transformed + pairs) * value_depth
