"""The position term in graphs: torch.export, ONNX and torch.jit.trace.

Graphs contain only standard operations: no custom operators, no FFTs, and no Python loops over dynamic sizes. With
fixed sides, the implementation with the fewest multiply-adds is used: query order, lambda order and convolution as in
the other files of this folder, or `_row_transform`, which is the algorithm `mixed` as plain matrix products. Tensors
that depend only on the table are computed in the graph; runtimes fold them into constants when they load it. With
dynamic sides, a convolution with the whole table is used, which is valid for every size.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.geometry import crop_to_grid, mask_future, pairwise_embeddings, split_phases, static_shape
from lambdanets.ops.position.problem import Factors, redilate
from lambdanets.ops.precision import output_dtype

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_NUM_ROW_TILES = (1, 2, 4)  # candidates for `_row_transform`
_MIN_TILE_ROWS = 4


def trace_interaction(factors: Factors, grid: Sequence[int], dilation: int, causal: bool) -> Tensor:
    """Compute the output (b, h, n, v) for checked factors with standard PyTorch operations."""
    queries, table, values, content = factors
    queries, values = (x.to(output_dtype(x.dtype)) for x in (queries, values))
    table = table.to(values.dtype)
    if causal:
        table = mask_future(table, len(grid))
    if any(isinstance(side, torch.SymInt) for side in grid):
        output = _convolution(queries, table, values, grid, dilation)
    else:
        if dilation > 1:
            queries = split_phases(queries.transpose(1, 2), grid, dilation).transpose(1, 2)
            values = split_phases(values, grid, dilation)
        sides = tuple(-(-side // dilation) for side in grid)
        table = crop_to_grid(table, sides)
        implementation = _cheapest(queries, table, values, sides)
        output = redilate(implementation(queries, table, values, sides), grid, dilation)
    return output if content is None else output + factors.queries.to(content.dtype) @ content.unsqueeze(1)


_Implementation = Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor]


def _cheapest(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int]) -> _Implementation:
    """Return the implementation with the fewest multiply-adds per example."""
    _, heads, _, depth = static_shape(queries)
    *_, value_depth, intra_depth = static_shape(values)
    *sides, _, _ = static_shape(table)
    n, scope = math.prod(grid), math.prod(sides)
    apply_cost = heads * n * depth * value_depth
    costs: dict[_Implementation, float] = {
        _query_order: n * n * heads * (depth + value_depth) * intra_depth,
        _lambda_order: n * n * depth * value_depth * intra_depth + apply_cost,
        _convolution: n * scope * depth * value_depth * intra_depth + apply_cost,
        _row_transform: _row_transform_cost(grid, static_shape(table), value_depth) + apply_cost,
    }
    return min(costs, key=lambda implementation: costs[implementation])


def _query_order(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int]) -> Tensor:
    """Multiply queries by the embeddings of all pairs first, then the logits by values."""
    n = math.prod(grid)
    embeddings = pairwise_embeddings(table, grid, 1).reshape(n, queries.shape[3], -1)  # (n, k, (u, m))
    logits = (queries.transpose(1, 2) @ embeddings).flatten(1, 2)  # (b, (n, h), (u, m))
    output = logits @ values.permute(0, 3, 1, 2).flatten(1, 2)
    return output.unflatten(1, (n, -1)).transpose(1, 2)


def _lambda_order(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int]) -> Tensor:
    """Multiply the embeddings of all pairs by values first, then queries by the lambdas."""
    n = math.prod(grid)
    embeddings = pairwise_embeddings(table, grid, 1).reshape(n * queries.shape[3], -1)  # ((n, k), (u, m))
    lambdas = embeddings @ values.permute(0, 3, 1, 2).flatten(1, 2)
    return (queries.transpose(1, 2) @ lambdas.unflatten(1, (n, -1))).transpose(1, 2)


def _convolution(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int], dilation: int = 1) -> Tensor:
    maps = values.permute(0, 2, 3, 1).unflatten(3, tuple(grid)).contiguous()  # (b, v, u, S_1..S_D)
    weights = table.movedim((len(grid), len(grid) + 1), (0, 1))  # (k, u, r_1..r_D)
    padding = [side // 2 * dilation for side in weights.shape[2:]]
    lambdas = _CONVOLUTIONS[len(grid)](maps.flatten(0, 1), weights, padding=padding, dilation=dilation)
    lambdas = lambdas.unflatten(0, (-1, values.shape[2])).flatten(3)  # (b, v, k, n)
    return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas)


def _row_transform(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int]) -> Tensor:
    """Discrete Fourier transform along the last axis, by matrix products; pairs of positions along the other axes.

    See mixed.py for the equations. A complex number is an axis of size 2, and f counts the F frequencies. Positions of
    the leading axes are flattened to p; in 2-D, tiles of rows need only the rows within the radius of the table.
    """
    if len(grid) == 1:
        grid, table = (1, *grid), table.unsqueeze(0)
    leading, width = len(grid) - 1, grid[-1]
    rows = math.prod(grid[:-1])
    *_, scope, depth, _ = static_shape(table)
    length = _transform_length(width, scope)
    # exp(-i w f x), exp(i w f dx) and exp(i w f x), with w = 2 pi / length
    cosines, sines = _dft_basis(length, range(width), table)
    offset_cosines, offset_sines = _dft_basis(length, range(-(scope // 2), scope // 2 + 1), table)
    forward = torch.stack([cosines, -sines], dim=1).flatten(0, 1)  # ((f, 2), x)
    weights = torch.tensor([1 / length] + [2 / length] * (len(cosines) - 1), dtype=table.dtype, device=table.device)
    inverse = (torch.stack([cosines, -sines], dim=1) * weights[:, None, None]).flatten(0, 1).T  # (x, (f, 2))
    real, imaginary = (torch.einsum("fd,...dku->...fku", basis, table) for basis in (offset_cosines, offset_sines))
    matrix = [torch.stack(row, dim=-1) for row in ((real, -imaginary), (imaginary, real))]  # complex product as 2 x 2
    spectra = torch.stack(matrix, dim=-4)  # (r_1..r_{D-1}, f, 2, k, u, 2)
    pair_spectra = pairwise_embeddings(spectra.flatten(leading + 3).flatten(leading, leading + 2), grid[:-1], 1)
    pair_spectra = pair_spectra.flatten(leading + 2).flatten(0, leading - 1)  # (p, (f, 2, k), (u, 2), p')
    pair_spectra = pair_spectra.unflatten(1, (len(cosines), -1)).permute(1, 2, 0, 4, 3)  # (f, (2, k), p, p', (u, 2))

    maps = values.unflatten(1, (rows, width)).flatten(3)  # (b, p', x, (v, u))
    value_spectra = (forward @ maps).unflatten(3, values.shape[2:]).unflatten(2, (-1, 2))  # (b, p', f, 2, v, u)
    value_spectra = value_spectra.permute(2, 1, 5, 3, 0, 4).flatten(2, 3)  # (f, p', (u, 2), b, v)
    queries = queries.transpose(1, 2).unflatten(1, (rows, width))  # (b, p, x, h, k)
    radius = static_shape(table)[0] // 2
    tile = -(-rows // _num_row_tiles(grid, radius))
    outputs = []
    for start in range(0, rows, tile):
        stop = min(rows, start + tile)
        window = slice(max(0, start - radius), min(rows, stop + radius)) if leading == 1 else slice(0, rows)
        block = pair_spectra[:, :, start:stop, window].flatten(3).flatten(1, 2)  # (f, (2, k, p), (p', u, 2))
        lambda_spectra = block @ value_spectra[:, window].flatten(1, 2).flatten(2)  # (f, (2, k, p), (b, v))
        lambdas = inverse @ lambda_spectra.unflatten(1, (2, -1)).flatten(0, 1).flatten(1)  # (x, (k, p, b, v))
        lambdas = lambdas.view(width, depth, stop - start, -1, values.shape[2]).permute(3, 2, 0, 1, 4)
        outputs.append(queries[:, start:stop] @ lambdas)  # (b, p, x, h, v)
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return output.flatten(1, 2).transpose(1, 2)


def _row_transform_cost(grid: Sequence[int], table_shape: Sequence[int], value_depth: int) -> float:
    """Return the multiply-adds per example of `_row_transform` before the queries are applied."""
    rows, width = math.prod(grid[:-1]), grid[-1]
    scope, depth, intra_depth = table_shape[-3:]
    num_frequencies = (_transform_length(width, scope) + 1) // 2
    window = _window_rows(grid, table_shape[0] // 2, _num_row_tiles(grid, table_shape[0] // 2))
    transforms = 2 * num_frequencies * width * rows * value_depth * (depth + intra_depth)
    return transforms + 4 * num_frequencies * rows * window * depth * intra_depth * value_depth


def _num_row_tiles(grid: Sequence[int], radius: int) -> int:
    """Return the number of row tiles whose windows have the fewest rows; 1 unless the grid is 2-D."""
    if len(grid) != 2:
        return 1
    candidates = [count for count in _NUM_ROW_TILES if count == 1 or grid[0] // count >= _MIN_TILE_ROWS]
    return min(candidates, key=lambda count: _window_rows(grid, radius, count))


def _window_rows(grid: Sequence[int], radius: int, num_tiles: int) -> float:
    """Return the mean number of rows in the window of a tile."""
    rows = math.prod(grid[:-1])
    if len(grid) != 2:
        return rows
    tile = -(-rows // num_tiles)
    starts = range(0, rows, tile)
    return sum(min(rows, start + tile + radius) - max(0, start - radius) for start in starts) / len(starts)


def _transform_length(width: int, scope: int) -> int:
    """Return the smallest odd DFT length without wrap-around."""
    return (width + scope // 2) | 1


def _dft_basis(length: int, positions: range, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (f, x) of 2 pi f x / length, for f up to (length - 1) / 2."""
    angles = [[2 * math.pi * (f * x % length) / length for x in positions] for f in range((length + 1) // 2)]
    cosines, sines = (
        torch.tensor([[function(angle) for angle in row] for row in angles], dtype=like.dtype, device=like.device)
        for function in (math.cos, math.sin)
    )
    return cosines, sines
