"""Mixed: a Fourier transform along the last axis, by matrix products, and embeddings of pairs along the others.

Along the last axis, of side W, the interaction is a convolution: one product for each of F = (N + 1) / 2 frequencies.
N is odd and at least W + radius, which avoids wrap-around. With w = 2 pi / N and c = (W - 1) / 2, the center of a row:
    V^[f,y,u] = sum_x V[y,x,u] exp(-i w f (x - c)),     R^[f,dy,k,u] = sum_dx R[dy,dx,k,u] exp(i w f dx)
    L^[f,k,y] = sum_{y',u} R^[f, y' - y, k, u] V^[f,y',u]
    lambda[k,y,c +- t] = sum_f cosines[t,f] Re L^[f] +- sum_f sines[t,f] Im L^[f] = C +- D,     y = sum_k q lambda.
Both halves of a row use the same C and D. Queries packed as [q+, q+] and [q-, -q-] apply C + D and C - D directly, so
lambdas are never stored. Transforms are matrix products, so every length is equally fast. README.md in this folder
derives N and the gradients.

On GPUs, bfloat16 problems use bfloat16 products; tables are transformed in float32, and gradients are summed over rows
in float32. The error against float64 stays below twice that of the reference implementation in bfloat16.

Cost: about 4 F / W window + F + 2 h multiply-adds per lambda element (b n k v), compared with prod(r) for the
convolution. Suitable for maps from 28x28 and scopes from 15. Memory: L^ and its inverse transform for a few rows.
"""

import math
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from lambdanets.ops.position.algorithm import Algorithm, BoundPositionAlgorithm, Gradients
from lambdanets.ops.position.mirrored import pack_outputs, pack_queries, unpack_outputs, unpack_queries
from lambdanets.ops.position.problem import Cost, NeedsGrad, Prepared, Problem
from lambdanets.ops.position.rates import Rates
from lambdanets.ops.position.scratch import contiguous, scratch
from lambdanets.ops.position.tiling import Tiling, make_block, make_block_backward
from lambdanets.ops.precision import accumulation_dtype

# Candidates for the rows of the first axis per tile, and the maximum size of L^.
_TILE_ROWS = (1, 2, 4, 7, 8, 14)
_MAX_SPECTRUM_BYTES = 6 << 20, 32 << 20  # to fit the cache of a CPU core and of a GPU


class Mixed(Algorithm):
    name = "mixed"

    def cost(self, problem: Problem, rates: Rates) -> Cost:
        plane = problem.at_least_2d()
        return _cost(_best_tiling(plane, rates), plane, rates)

    def bind(self, problem: Problem, rates: Rates) -> "BoundMixed":
        plane = problem.at_least_2d()
        return BoundMixed(problem.limit_batch(_batch_per_call(plane)), _best_tiling(plane, rates))

    def compute_dtype(self, problem: Problem, rates: Rates) -> torch.dtype:
        """bfloat16 on GPUs only: on a CPU with AMX, these products took 1.05 to 1.9 times as long as in float32."""
        on_gpu = torch.device(problem.device).type == "cuda"
        if problem.dtype == torch.bfloat16 and on_gpu and rates.bfloat16_gain > 1:
            return torch.bfloat16
        return super().compute_dtype(problem, rates)


class BoundMixed(BoundPositionAlgorithm):
    """tiling: tiles of all axes except the last, from `row_tiling`."""

    def __init__(self, problem: Problem, tiling: Tiling) -> None:
        super().__init__(problem)
        self._plane = problem.at_least_2d()
        self._tiling = tiling
        self._num_frequencies = num_frequencies(problem)

    def prepare(self, table: Tensor) -> Prepared:
        """Return block (F, (2, k, T), (window, u, 2)), transform of values ((F, 2), W), cosines and sines (t, F)."""
        dtype, leading = table.dtype, len(self._plane.grid) - 1
        table = table.to(accumulation_dtype(dtype))
        if table.ndim - 2 == leading:
            table = table.unsqueeze(0)
        real, imaginary = (torch.einsum("fd,...dku->...fku", basis, table) for basis in self._offset_basis(table))
        # Write the complex product R^ V^ as a real 2 x 2 matrix times (Re V^, Im V^).
        matrix = [torch.stack(row, dim=-1) for row in ((real, -imaginary), (imaginary, real))]
        spectra = torch.stack(matrix, dim=-4)  # (r_1..r_{D-1}, F, 2, k, u, 2)
        block = make_block(spectra.flatten(leading + 3).flatten(leading, leading + 2), self._tiling.axes)
        # (T_1.., (F, 2, k), w_1.., (u, 2)) to (F, (2, k, T_1..), (w_1.., u, 2))
        block = block.movedim(leading, 0).unflatten(0, (self._num_frequencies, -1)).flatten(leading + 2)
        return tuple(x.to(dtype) for x in (block.flatten(1, leading + 1), *self._transforms(table)))

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        p, f = self._plane, self._num_frequencies
        leading = len(p.grid) - 1
        block = grad_prepared[0].view(f, 2, p.query_depth, *self._tiling.tile, *self._tiling.window, p.intra_depth, 2)
        block = block.permute(*range(3, 3 + leading), 0, 1, 2, *range(3 + leading, 5 + 2 * leading))
        block = block.flatten(2 * leading + 3).flatten(leading, leading + 2)
        spectra = make_block_backward(block, self._tiling.axes, p.scope[:-1])
        spectra = spectra.unflatten(-1, (p.intra_depth, 2)).unflatten(leading, (f, 2, p.query_depth))
        # (r_1..r_{D-1}, F, rows of the matrix, k, u, columns of the matrix)
        first, second = spectra.unbind(-4)
        grad_real = first[..., 0] + second[..., 1]
        grad_imaginary = second[..., 0] - first[..., 1]
        cosines, sines = self._offset_basis(spectra)
        table = torch.einsum("fd,...fku->...dku", cosines, grad_real)
        table = table + torch.einsum("fd,...fku->...dku", sines, grad_imaginary)
        return table if len(self.problem.grid) > 1 else table.squeeze(0)

    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        p = self._plane
        value_spectra = self._transform_values(values, prepared[1])
        queries = pack_queries(queries, p)
        output = scratch("outputs", (*queries.shape[:3], 2 * p.heads, p.value_depth), queries)
        for start, stop, window_start, window_stop, columns in self._tiling.rows():
            halves = self._lambda_halves(prepared, value_spectra[:, window_start:window_stop], stop - start, columns)
            outputs = _view_rows(output, start, stop)
            for query_tile, half, out in zip(queries[:, start:stop].flatten(1, 2), halves, outputs, strict=True):
                torch.bmm(query_tile, half.transpose(0, 1), out=out)
        return unpack_outputs(output, p)

    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs_grad: NeedsGrad
    ) -> Gradients:
        """Recomputes the lambdas. README.md in this folder derives each step."""
        p, f, tiling = self._plane, self._num_frequencies, self._tiling
        k, v = p.query_depth, p.value_depth
        block, transform, cosines, sines = prepared
        value_spectra = self._transform_values(values, transform)
        queries, grad_output = pack_queries(queries, p), pack_outputs(grad_output, p)
        grad_queries = grad_block = grad_value_spectra = None
        if needs_grad.queries:
            grad_queries = scratch("gradient of queries", tuple(queries.shape), queries)
        if needs_grad.table:
            grad_block = torch.zeros_like(block, dtype=accumulation_dtype(block.dtype))
        if needs_grad.values:
            grad_value_spectra = torch.zeros_like(value_spectra, dtype=accumulation_dtype(block.dtype))
        for start, stop, window_start, window_stop, columns in tiling.rows():
            rows, window = stop - start, slice(window_start, window_stop)
            query_tile, grad_tile = queries[:, start:stop].flatten(1, 2), grad_output[:, start:stop].flatten(1, 2)
            if grad_queries is not None:
                halves = self._lambda_halves(prepared, value_spectra[:, window], rows, columns)
                outputs = _view_rows(grad_queries, start, stop)
                for grad, half, out in zip(grad_tile, halves, outputs, strict=True):
                    torch.bmm(grad, half.permute(1, 2, 0), out=out)
            if grad_block is None and grad_value_spectra is None:
                continue
            # Gradients of C and D (t, (T, b), (2, k), v), copied to the layout of `_lambda_halves`.
            half_side, num_matrices = grad_tile.shape[:2]
            product = scratch("product", (half_side * num_matrices, 2 * k, v), query_tile)
            torch.bmm(query_tile.flatten(0, 1).transpose(1, 2), grad_tile.flatten(0, 1), out=product)
            grad_halves = scratch("halves", (half_side, 2, k, num_matrices, v), query_tile)
            grad_halves.copy_(product.view(half_side, num_matrices, 2, k, v).permute(0, 2, 3, 1, 4))
            grad_halves = grad_halves.view(half_side, 2, -1)
            grad_lambda_spectra = scratch("lambda spectra", (f, 2, grad_halves.shape[2]), query_tile)
            torch.mm(cosines.T, grad_halves[:, 0], out=grad_lambda_spectra[:, 0])
            torch.mm(sines.T, grad_halves[:, 1], out=grad_lambda_spectra[:, 1])
            grad_lambda_spectra = grad_lambda_spectra.view(f, -1, value_spectra.shape[-1])
            if grad_value_spectra is not None:
                product = torch.bmm(self._block_tile(block, rows, columns).transpose(1, 2), grad_lambda_spectra)
                grad_value_spectra[:, window] += product.view(grad_value_spectra[:, window].shape)
            if grad_block is not None:
                product = torch.bmm(grad_lambda_spectra, value_spectra[:, window].flatten(1, 2).transpose(1, 2))
                product = product.unflatten(1, (2 * k, rows, -1))
                grad_block.unflatten(1, (2 * k, tiling.tile[0], -1))[:, :, :rows, :, columns] += product
        return (
            None if grad_queries is None else unpack_queries(grad_queries, p),
            None if grad_block is None else (grad_block,),
            None if grad_value_spectra is None else self._transform_back(grad_value_spectra.to(block.dtype), transform),
        )

    def _lambda_halves(self, prepared: Prepared, value_spectra: Tensor, rows: int, columns: slice) -> Tensor:
        """Compute C and D (t, (2, k), (T, b), v) from the value spectra in the window of a tile with `rows` rows."""
        block, _, cosines, sines = prepared
        block_tile = self._block_tile(block, rows, columns)
        spectra = scratch("lambda spectra", (*block_tile.shape[:2], value_spectra.shape[-1]), block)  # L^
        torch.bmm(block_tile, value_spectra.flatten(1, 2), out=spectra)
        spectra = spectra.view(self._num_frequencies, 2, -1)
        halves = scratch("halves", (cosines.shape[0], 2, spectra.shape[2]), block)
        torch.mm(cosines, spectra[:, 0], out=halves[:, 0])
        torch.mm(sines, spectra[:, 1], out=halves[:, 1])
        return halves.view(cosines.shape[0], 2 * self._plane.query_depth, -1, self._plane.value_depth)

    def _block_tile(self, block: Tensor, rows: int, columns: slice) -> Tensor:
        """Return the block for a tile with `rows` rows, because the last tile may be smaller, and its window."""
        by_row = block.unflatten(1, (2 * self._plane.query_depth, self._tiling.tile[0], -1))
        return by_row[:, :, :rows].flatten(1, 3)[:, :, columns]

    def _transform_values(self, values: Tensor, transform: Tensor) -> Tensor:
        """Transform values (b, n, v, u) to V^ (F, S_1, (S_2..S_{D-1}, u, 2), (b, v))."""
        grid = self._plane.grid
        leading = len(grid) - 1
        # (W, S_1..S_{D-1}, u, b, v)
        maps = values.unflatten(1, grid).permute(leading + 1, *range(1, leading + 1), leading + 3, 0, leading + 2)
        spectra = transform @ contiguous("values", maps).view(grid[-1], -1)
        spectra = spectra.view(self._num_frequencies, 2, grid[0], -1, values.shape[0] * values.shape[2])
        return contiguous("spectra", spectra.permute(0, 2, 3, 1, 4)).flatten(2, 3)

    def _transform_back(self, spectra: Tensor, transform: Tensor) -> Tensor:
        """The adjoint of `_transform_values`."""
        p = self._plane
        spectra = spectra.unflatten(2, (-1, 2)).permute(0, 3, 1, 2, 4).flatten(0, 1)
        maps = (transform.T @ spectra.flatten(1)).view(p.grid[-1], *p.grid[:-1], p.intra_depth, -1, p.value_depth)
        leading = len(p.grid) - 1
        return maps.permute(leading + 2, *range(1, leading + 1), 0, leading + 3, leading + 1).flatten(1, leading + 1)

    def _offset_basis(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin (F, r_D) of w f dx for the offsets dx of the last axis."""
        before, after = self._plane.before[-1], self._plane.after[-1]
        angles = self._angles(torch.arange(-before, after + 1, dtype=torch.float64, device=_angle_device(like)))
        return angles.cos().to(like), angles.sin().to(like)

    def _transforms(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the transform of values ((F, 2), W), and cosines and sines (t, F) of the inverse transform."""
        side = self._plane.grid[-1]
        angles = self._angles(torch.arange(side, dtype=torch.float64, device=_angle_device(like)) - (side - 1) / 2)
        transform = torch.stack([angles.cos(), -angles.sin()], dim=1).flatten(0, 1)
        angles = angles[:, side // 2 :].T
        weights = torch.full_like(angles[0], 2 / (2 * self._num_frequencies - 1))
        weights[0] /= 2  # frequency 0 has no conjugate
        return (
            transform.to(like),
            (weights * angles.cos()).to(like),
            (-weights * angles.sin()).to(like),
        )

    def _angles(self, x: Tensor) -> Tensor:
        """Return w f x (F, positions)."""
        f = torch.arange(self._num_frequencies, dtype=torch.float64, device=x.device)
        return 2 * math.pi / (2 * self._num_frequencies - 1) * f[:, None] * x


def _angle_device(like: Tensor) -> torch.device:
    """Return a device with float64, which MPS lacks."""
    return like.device if like.is_cuda else torch.device("cpu")


def _view_rows(x: Tensor, start: int, stop: int) -> Tensor:
    """Return a writable view of rows of (t, S_1, (S_2.., b), ..) as (t, (rows, S_2.., b), ..).

    `flatten` could return a copy; `view` raises instead.
    """
    half_side, _, columns, *rest = x.shape
    return x[:, start:stop].view(half_side, (stop - start) * columns, *rest)


def num_frequencies(problem: Problem) -> int:
    """Return the smallest F for which N = 2 F - 1 is at least the last side plus the radius of the table along it."""
    return (problem.grid[-1] + max(problem.before[-1], problem.after[-1])) // 2 + 1


def row_tiling(plane: Problem, rows: int) -> Tiling:
    """Return tiles of `rows` rows of the first axis, for all axes except the last, with (u, 2) as intra-depth."""
    grid, before, after = (sides[:-1] for sides in (plane.grid, plane.before, plane.after))
    leading = replace(plane, grid=grid, before=before, after=after, intra_depth=2 * plane.intra_depth)
    return Tiling(leading, (min(rows, grid[0]), *grid[1:]))


@lru_cache(maxsize=1024)
def _best_tiling(plane: Problem, rates: Rates) -> Tiling:
    tilings = [row_tiling(plane, rows) for rows in sorted({min(rows, plane.grid[0]) for rows in _TILE_ROWS})]
    limit = plane.select_by_device(*_MAX_SPECTRUM_BYTES)
    fitting = [tiling for tiling in tilings if _spectrum_bytes(tiling, plane, 1) <= limit] or tilings[:1]
    return min(fitting, key=lambda tiling: _cost(tiling, plane, rates).total_seconds)


def _spectrum_bytes(tiling: Tiling, problem: Problem, batch: int) -> int:
    """Return the size of L^ for one tile."""
    rows = math.prod(tiling.tile)
    return 8 * num_frequencies(problem) * problem.query_depth * rows * batch * problem.value_depth


def _batch_per_call(plane: Problem) -> int:
    """Return the largest batch for which L^ of a few rows fits the cache, but at least 64 columns for fast products."""
    limit = plane.select_by_device(*_MAX_SPECTRUM_BYTES)
    return max(1, limit // _spectrum_bytes(row_tiling(plane, 4), plane, 1), 64 // plane.value_depth)


def _cost(tiling: Tiling, problem: Problem, rates: Rates) -> Cost:
    p = problem
    k, v, f, heads = p.query_depth, p.value_depth, num_frequencies(p), p.heads
    batch = min(p.batch, _batch_per_call(p))
    num_calls = -(-p.batch // batch)
    num_maps = batch * v
    half_side = -(-p.grid[-1] // 2)
    num_lines = math.prod(p.grid[:-1])
    operations = 0.0
    forward = backward = 0.0
    for start, stop, window_start, window_stop, _ in tiling.rows():
        rows = (stop - start) * tiling.positions_per_tile_row
        window = (window_stop - window_start) * tiling.elements_per_window_row
        product_seconds = rates.matmul_seconds(f, 2 * k * rows, window, num_maps)
        inverse_seconds = 2 * rates.matmul_seconds(1, half_side, f, k * rows * num_maps)
        apply_seconds = rates.matmul_seconds(half_side * rows * batch, 2 * heads, 2 * k, v)
        operations += 2.0 * num_maps * rows * k * (2 * f * window + 2 * half_side * f + 8 * half_side * heads)
        forward += product_seconds + inverse_seconds + apply_seconds + rates.call_overhead(10 + half_side)
        gradient_copy_seconds = rates.copy_seconds(8 * half_side * k * rows * num_maps)
        backward += product_seconds + inverse_seconds + 2 * apply_seconds + gradient_copy_seconds + inverse_seconds
        backward += 2 * product_seconds + rates.call_overhead(30 + half_side)
    transform_seconds = rates.matmul_seconds(1, 2 * f, p.grid[-1], num_lines * p.intra_depth * num_maps)
    operations += 4.0 * f * p.grid[-1] * num_lines * p.intra_depth * num_maps
    spectrum_elements = 2 * f * num_lines * p.intra_depth * num_maps
    packed_elements = 2 * heads * batch * p.num_positions * (2 * k + v)
    window_elements = tiling.window[0] * tiling.elements_per_window_row
    block_elements = 4 * f * k * p.intra_depth * math.prod(tiling.tile) * window_elements
    copied_bytes = 4 * (packed_elements + spectrum_elements)
    forward += transform_seconds + rates.copy_seconds(copied_bytes) + rates.call_overhead(25)
    backward += 2 * transform_seconds + rates.copy_seconds(2 * copied_bytes) + rates.call_overhead(60)
    # The block is cached, so a training step prepares it once.
    preparation_seconds = rates.copy_seconds(12 * block_elements)
    return Cost(
        operations=round(num_calls * operations),
        # Peak memory is in the backward pass: block and its gradient, packed queries and outputs twice.
        workspace_bytes=max(4, p.dtype.itemsize) * (6 * block_elements + 4 * spectrum_elements + 3 * packed_elements)
        + 4 * _spectrum_bytes(tiling, p, batch),
        seconds=num_calls * forward + preparation_seconds / 4,
        backward_seconds=num_calls * backward + 1.75 * preparation_seconds,
    )
