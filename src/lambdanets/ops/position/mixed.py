"""Mixed: a real Fourier transform along the last axis, by matrix products, and embeddings along the others.

Along the last axis, of side W, positions interact by offset alone: a product for each of F = (N + 1) / 2 frequencies,
N >= W + reach odd, so that nothing wraps around. With w = 2 pi / N and x centred at c = (W - 1) / 2:
    V^[f,y,u] = sum_x V[y,x,u] exp(-i w f (x - c)),     K[f,dy,k,u] = sum_dx R[dy,dx,k,u] exp(i w f dx)
    S[f,k,y] = sum_{y',u} K[f, y' - y, k, u] V^[f,y',u]
    lambda[k,y,c +- t] = sum_f Dc[t,f] Re S[f] +- sum_f Ds[t,f] Im S[f] = C +- D,     y = sum_k q lambda.
Both halves of a row share C and D; the queries take up their sum and difference, [q+, q+] and [q-, -q-], so the
lambdas themselves are never formed. Transforms of any length are plain products: no length is slow.

Cost: about 4 F / W window + F + 2 h multiply-adds a lambda element (b n k v), where the convolution takes prod(r):
for maps of 28 and more with scopes of 15 and more. Held at a time: S and its inverse transform for a few rows.
"""

import math
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from lambdanets.ops.position.mirrored import pack_outputs, pack_queries, unpack_outputs, unpack_queries
from lambdanets.ops.position.problem import Cost, Prepared, Problem, Wanted
from lambdanets.ops.position.rates import Rates
from lambdanets.ops.position.scratch import packed, scratch
from lambdanets.ops.position.tiling import Tiling
from lambdanets.ops.position.toeplitz import make_block, sum_of_block

# Rows of the first axis worked on at once are chosen from these; S stays within this size where it can.
_ROWS = (1, 2, 4, 7, 8, 14)
_CHUNK_BYTES = 6 << 20, 32 << 20  # in the cache of a core, of a GPU


def frequencies(problem: Problem) -> int:
    """F: N = 2 F - 1 is at least as long as the last axis and the longer reach along it."""
    return (problem.grid[-1] + max(problem.before[-1], problem.after[-1])) // 2 + 1


def cost(problem: Problem, rates: Rates) -> Cost:
    """Predicted cost of `forward` and `backward`."""
    return _cost(rows_of(problem, rates), problem.as_plane(), rates)


def examples_at_once(problem: Problem, rates: Rates) -> int:
    """As many as keep what one row of tiles has in the cache, but columns enough for fast products."""
    return _examples_at_once(problem.as_plane())


def prepare(table: Tensor, problem: Problem, rates: Rates) -> Prepared:
    """E (F, (2, k, T), (window, u, 2)), the transform of values ((F, 2), W) and the inverse ones, (T_x, F) each."""
    p = problem.as_plane()
    if table.ndim - 2 < len(p.grid):
        table = table.unsqueeze(0)
    real, imaginary = _waves_of_offsets(p, table)
    # K as a real 2 x 2 block acting on (Re V^, Im V^)
    k_real, k_imaginary = (torch.einsum("fd,...dku->...fku", waves, table) for waves in (real, imaginary))
    rows = [torch.stack(pair, dim=-1) for pair in ((k_real, -k_imaginary), (k_imaginary, k_real))]
    spectra = torch.stack(rows, dim=-4)  # (r_1..r_{D-1}, F, 2, k, u, 2)
    leading = len(p.grid) - 1
    tiling = rows_of(problem, rates)
    block = make_block(spectra.flatten(leading + 3).flatten(leading, leading + 2), tiling.axes)
    # (T_1.., (F, 2, k), w_1.., (u, 2)) to (F, (2, k, T_1..), (w_1.., u, 2))
    block = block.movedim(leading, 0).unflatten(0, (frequencies(p), -1)).flatten(leading + 2)
    return (block.flatten(1, leading + 1), *_transforms(p, table))


def gradient_of_table(gradients: Prepared, problem: Problem, rates: Rates) -> Tensor:
    """The table's gradient from that of E."""
    p, f = problem.as_plane(), frequencies(problem)
    tiling = rows_of(problem, rates)
    leading = len(p.grid) - 1
    block = gradients[0].view(f, 2, p.query_depth, *tiling.tile, *tiling.window, p.intra_depth, 2)
    block = block.permute(*range(3, 3 + leading), 0, 1, 2, *range(3 + leading, 5 + 2 * leading))
    block = block.flatten(2 * leading + 3).flatten(leading, leading + 2)
    spectra = sum_of_block(block, tiling.axes, p.scope[:-1])
    spectra = spectra.unflatten(-1, (p.intra_depth, 2)).unflatten(leading, (f, 2, p.query_depth))
    # (r_1..r_{D-1}, F, ro, k, u, ri)
    first, second = spectra.unbind(-4)
    of_real = first[..., 0] + second[..., 1]
    of_imaginary = second[..., 0] - first[..., 1]
    real, imaginary = _waves_of_offsets(p, spectra)
    table = torch.einsum("fd,...fku->...dku", real, of_real) + torch.einsum(
        "fd,...fku->...dku", imaginary, of_imaginary
    )
    return table if len(problem.grid) > 1 else table.squeeze(0)


def forward(queries: Tensor, prepared: Prepared, values: Tensor, problem: Problem, rates: Rates) -> Tensor:
    """queries (b, h, n, k), values (b, n, v, u) -> (b, h, n, v)."""
    p = problem.as_plane()
    tiling = rows_of(problem, rates)
    spectra = _transform_values(values, prepared[1], p)
    queries = pack_queries(queries, p)
    output = scratch("outputs", (*queries.shape[:3], 2 * p.heads, p.value_depth), queries)
    for start, stop, low, high, columns in tiling.rows():
        lambdas = _halves_of_lambdas(prepared, spectra[:, low:high], tiling, stop - start, columns)
        results = _view_of_rows(output, start, stop)
        for asked, both, result in zip(queries[:, start:stop].flatten(1, 2), lambdas, results, strict=True):
            torch.bmm(asked, both.transpose(0, 1), out=result)
    return unpack_outputs(output, p)


def backward(
    gradient: Tensor,
    queries: Tensor,
    prepared: Prepared,
    values: Tensor,
    problem: Problem,
    wanted: Wanted,
    rates: Rates,
) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
    """Gradients of queries, E and values from that of the output (b, h, n, v); lambdas are computed again."""
    block, transform, cosines, sines = prepared
    p = problem.as_plane()
    spectra = _transform_values(values, transform, p)
    queries, gradient = pack_queries(queries, p), pack_outputs(gradient, p)
    of_queries = scratch("gradient of queries", tuple(queries.shape), queries) if wanted.queries else None
    of_block = torch.zeros_like(block) if wanted.table else None
    of_spectra = torch.zeros_like(spectra) if wanted.values else None
    tiling = rows_of(problem, rates)
    for start, stop, low, high, columns in tiling.rows():
        rows = stop - start
        asked, said = queries[:, start:stop].flatten(1, 2), gradient[:, start:stop].flatten(1, 2)
        if of_queries is not None:
            lambdas = _halves_of_lambdas(prepared, spectra[:, low:high], tiling, rows, columns)
            results = _view_of_rows(of_queries, start, stop)
            for one, both, result in zip(said, lambdas, results, strict=True):
                torch.bmm(one, both.permute(1, 2, 0), out=result)
        if of_block is None and of_spectra is None:
            continue
        halves, items = said.shape[:2]
        # gradients of C and D: (t, (T, b), (2, k), v), laid out as they were made
        shape = (halves * items, 2 * p.query_depth, p.value_depth)
        product = scratch("product", shape, asked)
        torch.bmm(asked.flatten(0, 1).transpose(1, 2), said.flatten(0, 1), out=product)
        laid_out = scratch("halves", (halves, 2, p.query_depth, items, p.value_depth), asked)
        laid_out.copy_(product.view(halves, items, 2, -1, p.value_depth).permute(0, 2, 3, 1, 4))
        laid_out = laid_out.view(halves, 2, -1)
        of_sums = scratch("sums", (block.shape[0], 2, laid_out.shape[2]), asked)
        torch.mm(cosines.T, laid_out[:, 0], out=of_sums[:, 0])
        torch.mm(sines.T, laid_out[:, 1], out=of_sums[:, 1])
        of_sums = of_sums.view(block.shape[0], -1, spectra.shape[-1])
        part = _by_row(block, tiling)[:, :, :rows].flatten(1, 3)[:, :, columns]
        window = slice(low, high)
        if of_spectra is not None:
            product = torch.bmm(part.transpose(1, 2), of_sums)
            of_spectra[:, window] += product.view(of_spectra[:, window].shape)
        if of_block is not None:
            context = spectra[:, window].flatten(1, 2)
            product = torch.bmm(of_sums, context.transpose(1, 2))
            _by_row(of_block, tiling)[:, :, :rows, :, columns] += product.view(_by_row(product, tiling, rows).shape)
    return (
        None if of_queries is None else unpack_queries(of_queries, p),
        None if of_block is None else (of_block,),
        None if of_spectra is None else _transform_back(of_spectra, transform, p),
    )


def _view_of_rows(packed: Tensor, start: int, stop: int) -> Tensor:
    """Some rows of (t, S_1, (S_2.., b), ..) as (t, (rows, S_2.., b), ..), to write into.

    `flatten` may copy, and what is written would be lost; `view` raises instead.
    """
    halves, _, items, *rest = packed.shape
    return packed[:, start:stop].view(halves, (stop - start) * items, *rest)


def rows_of(problem: Problem, rates: Rates) -> Tiling:
    """How many rows of the first axis are worked on at once; the axes but the last, with (u, 2) for the intra-depth."""
    return _best_rows(problem.as_plane(), rates)


@lru_cache(maxsize=1024)
def _best_rows(problem: Problem, rates: Rates) -> Tiling:
    tilings = [_rows(problem, rows) for rows in sorted({min(rows, problem.grid[0]) for rows in _ROWS})]
    limit = problem.within_cache(*_CHUNK_BYTES)
    fitting = [tiling for tiling in tilings if _chunk_bytes(tiling, problem, 1) <= limit] or tilings[:1]
    costs = [_cost(tiling, problem, rates) for tiling in fitting]
    return min(zip(fitting, costs, strict=True), key=lambda pair: pair[1].seconds + pair[1].backward_seconds)[0]


def _rows(problem: Problem, rows: int) -> Tiling:
    leading = replace(
        problem,
        grid=problem.grid[:-1],
        before=problem.before[:-1],
        after=problem.after[:-1],
        intra_depth=2 * problem.intra_depth,
    )
    return Tiling(leading, (rows, *leading.grid[1:]))


def _chunk_bytes(tiling: Tiling, problem: Problem, examples: int) -> int:
    """Size of S for the rows worked on at once."""
    rows = tiling.tile[0] * tiling.positions
    return 8 * frequencies(problem) * problem.query_depth * rows * examples * problem.value_depth


def _cost(tiling: Tiling, problem: Problem, rates: Rates) -> Cost:
    p = problem
    k, v, f, heads = p.query_depth, p.value_depth, frequencies(p), p.heads
    at_once = min(p.batch, _examples_at_once(p))
    passes = -(-p.batch // at_once)
    maps = at_once * v
    halves = -(-p.grid[-1] // 2)
    lines = math.prod(p.grid[:-1])
    operations = 0.0
    forward = backward = 0.0
    for start, stop, low, high, _ in tiling.rows():
        rows = (stop - start) * tiling.positions
        window = (high - low) * tiling.columns
        banded = rates.product(f, 2 * k * rows, window, maps)
        inverse = 2 * rates.product(1, halves, f, k * rows * maps)
        applied = rates.product(halves * rows * at_once, 2 * heads, 2 * k, v)
        operations += 2.0 * maps * rows * k * (2 * f * window + 2 * halves * f + 8 * halves * heads)
        forward += banded + inverse + applied + rates.calls(10 + halves)
        backward += banded + inverse + 2 * applied + rates.copy(8 * halves * k * rows * maps) + inverse
        backward += 2 * banded + rates.calls(30 + halves)
    transform = rates.product(1, 2 * f, p.grid[-1], lines * p.intra_depth * maps)
    operations += 4.0 * f * p.grid[-1] * lines * p.intra_depth * maps
    spectra = 2 * f * lines * p.intra_depth * maps
    packed = 2 * heads * at_once * p.positions * (2 * k + v)
    block = 4 * f * k * p.intra_depth * tiling.tile[0] * tiling.positions * tiling.window[0] * tiling.columns
    forward += transform + rates.copy(4 * (packed + spectra)) + rates.calls(25)
    backward += 2 * transform + rates.copy(4 * (2 * packed + 2 * spectra)) + rates.calls(60)
    # the block is kept for the next call with the same table: a training step makes it once
    making = rates.copy(12 * block)
    return Cost(
        operations=round(passes * operations),
        # a backward pass holds the most: the block's gradient beside it, packed queries and outputs twice
        workspace_bytes=max(4, p.dtype.itemsize) * (6 * block + 4 * spectra + 3 * packed)
        + 4 * _chunk_bytes(tiling, p, at_once),
        seconds=passes * forward + making / 4,
        backward_seconds=passes * backward + 1.75 * making,
    )


def _examples_at_once(problem: Problem) -> int:
    rows = _rows(problem, min(4, problem.grid[0]))
    limit = problem.within_cache(*_CHUNK_BYTES)
    return max(1, limit // _chunk_bytes(rows, problem, 1), 64 // problem.value_depth)


def _waves_of_offsets(problem: Problem, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin (F, r_D) of w f dx for the offsets of the last axis."""
    before, after = problem.before[-1], problem.after[-1]
    angles = _angles(problem, torch.arange(-before, after + 1, dtype=torch.float64, device=like.device))
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _transforms(problem: Problem, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The transform of values ((F, 2), W), and Dc and Ds (t, F) of the inverse."""
    side = problem.grid[-1]
    x = torch.arange(side, dtype=torch.float64, device=like.device) - (side - 1) / 2
    angles = _angles(problem, x)
    transform = torch.stack([angles.cos(), -angles.sin()], dim=1).flatten(0, 1)
    angles = angles[:, side // 2 :].T
    weights = torch.full_like(angles[0], 2 / (2 * frequencies(problem) - 1))
    weights[0] /= 2
    return transform.to(like.dtype), (weights * angles.cos()).to(like.dtype), (-weights * angles.sin()).to(like.dtype)


def _angles(problem: Problem, x: Tensor) -> Tensor:
    """w f x, (F, positions)."""
    f = frequencies(problem)
    return 2 * math.pi / (2 * f - 1) * torch.arange(f, dtype=torch.float64, device=x.device)[:, None] * x


def _transform_values(values: Tensor, transform: Tensor, problem: Problem) -> Tensor:
    """(b, n, v, u) to V^ (F, S_1, (S_2..S_{D-1}, u, 2), (b, v))."""
    maps = values.unflatten(1, problem.grid)
    leading = len(problem.grid) - 1
    # (W, S_1..S_{D-1}, u, b, v)
    maps = maps.permute(leading + 1, *range(1, leading + 1), leading + 3, 0, leading + 2)
    spectra = transform @ packed("values", maps).view(problem.grid[-1], -1)
    spectra = spectra.view(frequencies(problem), 2, problem.grid[0], -1, values.shape[0] * values.shape[2])
    return packed("spectra", spectra.permute(0, 2, 3, 1, 4)).flatten(2, 3)


def _transform_back(spectra: Tensor, transform: Tensor, problem: Problem) -> Tensor:
    """The adjoint of `_transform_values`."""
    p = problem
    spectra = spectra.unflatten(2, (-1, 2)).permute(0, 3, 1, 2, 4).flatten(0, 1)
    maps = (transform.T @ spectra.flatten(1)).view(p.grid[-1], *p.grid[:-1], p.intra_depth, -1, p.value_depth)
    leading = len(p.grid) - 1
    return maps.permute(leading + 2, *range(1, leading + 1), 0, leading + 3, leading + 1).flatten(1, leading + 1)


def _halves_of_lambdas(
    block_and_inverse: Prepared, spectra: Tensor, tiling: Tiling, rows: int, columns: slice
) -> Tensor:
    """C and D, (t, (2, k), (T, b), v), from the spectra of the rows that the window holds."""
    block, _, cosines, sines = block_and_inverse
    part = _by_row(block, tiling)[:, :, :rows].flatten(1, 3)[:, :, columns]
    sums = scratch("sums", (*part.shape[:2], spectra.shape[-1]), block)
    torch.bmm(part, spectra.flatten(1, 2), out=sums)
    sums = sums.view(block.shape[0], 2, -1)
    halves = scratch("halves", (cosines.shape[0], 2, sums.shape[2]), block)
    torch.mm(cosines, sums[:, 0], out=halves[:, 0])
    torch.mm(sines, sums[:, 1], out=halves[:, 1])
    p = tiling.problem
    return halves.view(cosines.shape[0], 2 * p.query_depth, -1, p.value_depth)


def _by_row(block: Tensor, tiling: Tiling, rows: int | None = None) -> Tensor:
    """(F, (2, k, T_1, ..), columns) as (F, (2, k), T_1, .., columns)."""
    return block.unflatten(1, (2 * tiling.problem.query_depth, tiling.tile[0] if rows is None else rows, -1))
