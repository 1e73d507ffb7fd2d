"""Fourier: position lambdas as a product of spectra, a few maps at a time; the cost hardly depends on the scope.

lambda[k,v,:] = F^-1( sum_u conj(F R[k,u,:]) F V[v,u,:] ) on a grid padded with zeros, so that nothing wraps around;
y = sum_k q lambda. Cost: b k v n log n, for large and global scopes on large grids and for long sequences.

The spectra of the values are made once for a chunk of value channels; then for a few query depths at a time their
product is transformed back, cut to the grid axis by axis, and applied: a chunk stays in the cache.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lambdanets.ops.position.problem import Cost, Prepared, Problem, Wanted
from lambdanets.ops.position.rates import Rates

# Numbers of padded grids in one chunk of lambdas. Sequences may leave the cache: their transforms have no strides.
_CHUNK, _CHUNK_OF_SEQUENCES = 1 << 19, 1 << 21
_FAST_FACTORS = (2, 3, 5, 7)


def cost(problem: Problem, rates: Rates) -> Cost:
    """Predicted cost of `forward` and `backward`."""
    p = problem
    padded = math.prod(padded_grid(p))
    maps = p.batch * p.value_depth * p.intra_depth
    lambdas = p.batch * p.value_depth * p.query_depth
    vs, ks = _chunks(p)
    transforms = maps + lambdas
    forward = rates.transforms(padded * transforms, padded)
    backward = rates.transforms(padded * (2 * maps + 2 * lambdas), padded)
    # products of spectra, then the lambdas applied, head by head
    applied = 4.0 * p.heads * lambdas * p.positions
    forward += rates.copy(4.0 * padded * lambdas * p.intra_depth + 2 * applied)
    backward += rates.copy(12.0 * padded * lambdas * p.intra_depth + 6 * applied)
    making = rates.transforms(padded * p.query_depth * p.intra_depth, padded)
    calls = p.batch * -(-p.value_depth // vs) * (8 + -(-p.query_depth // ks) * (6 + ks))
    spectra = 4 * padded * (p.query_depth * p.intra_depth + p.intra_depth * vs)
    return Cost(
        operations=round(2.5 * padded * math.log2(max(2, padded)) * transforms) + p.apply_operations,
        workspace_bytes=max(1, p.dtype.itemsize // 4) * (3 * spectra + 24 * padded * vs * ks),
        seconds=forward + making / 4 + rates.calls(calls),
        backward_seconds=backward + 1.75 * making + rates.calls(3 * calls),
    )


def examples_at_once(problem: Problem, rates: Rates) -> int:
    """All: `forward` and `backward` take them one by one."""
    return problem.batch


def padded_grid(problem: Problem) -> tuple[int, ...]:
    """Sides with few small factors, long enough that no offset of the table wraps around onto the grid."""
    p = problem
    return tuple(_fast_side(side + max(b, a)) for side, b, a in zip(p.grid, p.before, p.after, strict=True))


def prepare(table: Tensor, problem: Problem, rates: Rates) -> Prepared:
    """conj(F R), (k, u, N_1.., N_D / 2 + 1): offset 0 at index 0, negative offsets from the end."""
    padded = padded_grid(problem)
    axes = tuple(range(2, 2 + len(padded)))
    placed = table.new_zeros(*table.shape[-2:], *padded)
    corner = placed
    for axis, side in zip(axes, problem.scope, strict=True):
        corner = corner.narrow(axis, 0, side)
    corner.copy_(table.movedim((-2, -1), (0, 1)))
    placed = placed.roll([-before for before in problem.before], axes)
    return (torch.fft.rfftn(placed, dim=axes).conj().resolve_conj(),)


def gradient_of_table(gradients: Prepared, problem: Problem, rates: Rates) -> Tensor:
    """The table's gradient from its spectrum, conj(F G) F V summed over examples and value channels."""
    padded = padded_grid(problem)
    axes = tuple(range(2, 2 + len(padded)))
    placed = torch.fft.irfftn(gradients[0], s=padded, dim=axes).roll(problem.before, axes)
    for axis, side in zip(axes, problem.scope, strict=True):
        placed = placed.narrow(axis, 0, side)
    return placed.movedim((0, 1), (-2, -1))


def forward(queries: Tensor, prepared: Prepared, values: Tensor, problem: Problem, rates: Rates) -> Tensor:
    """queries (b, h, n, k), values (b, n, v, u) -> (b, h, n, v)."""
    p = problem
    (kernel,) = prepared
    output = queries.new_zeros(len(queries), p.heads, p.value_depth, p.positions)
    for example in range(len(queries)):
        asked = queries[example].transpose(1, 2).contiguous()  # (h, k, n)
        for some in _parts(p.value_depth, _chunks(p)[0]):
            spectra = _spectra(values[example, :, some], p)
            for depths in _parts(p.query_depth, _chunks(p)[1]):
                lambdas = _lambdas(kernel[depths], spectra, p)
                for k, of_depth in enumerate(lambdas, depths.start):
                    output[example, :, some].addcmul_(asked[:, k, None], of_depth)
    return output.transpose(2, 3)


def backward(
    gradient: Tensor,
    queries: Tensor,
    prepared: Prepared,
    values: Tensor,
    problem: Problem,
    wanted: Wanted,
    rates: Rates,
) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
    """Gradients of queries, spectrum and values from that of the output (b, h, n, v); lambdas are computed again."""
    p = problem
    (kernel,) = prepared
    of_queries = queries.new_zeros(len(queries), p.heads, p.query_depth, p.positions) if wanted.queries else None
    of_kernel = torch.zeros_like(kernel) if wanted.table else None
    of_values = values.new_zeros(len(values), p.value_depth, p.intra_depth, p.positions) if wanted.values else None
    for example in range(len(queries)):
        asked = queries[example].transpose(1, 2).contiguous()
        for some in _parts(p.value_depth, _chunks(p)[0]):
            said = gradient[example, :, :, some].transpose(1, 2).contiguous()  # (h, v, n)
            spectra = _spectra(values[example, :, some], p)
            of_spectra = torch.zeros_like(spectra)
            for depths in _parts(p.query_depth, _chunks(p)[1]):
                if of_queries is not None:
                    for k, of_depth in enumerate(_lambdas(kernel[depths], spectra, p), depths.start):
                        of_queries[example, :, k] += (said * of_depth).sum(dim=1)
                if of_kernel is None and of_values is None:
                    continue
                # gradients of the lambdas, (k, v, n), and their spectra
                of_lambdas = asked[0, depths, None] * said[0]
                for head in range(1, p.heads):
                    of_lambdas.addcmul_(asked[head, depths, None], said[head])
                of_lambdas = _transform(of_lambdas.unflatten(-1, p.grid), p)
                for k, of_depth in enumerate(of_lambdas, depths.start):
                    if of_values is not None:
                        of_spectra += of_depth.unsqueeze(1) * kernel[k].conj()
                    if of_kernel is not None:
                        of_kernel[k] += (of_depth.conj().unsqueeze(1) * spectra).sum(dim=0)
            if of_values is not None:
                of_values[example, some] = _transform_back(of_spectra, p)
    return (
        None if of_queries is None else of_queries.transpose(2, 3),
        None if of_kernel is None else (of_kernel,),
        None if of_values is None else of_values.permute(0, 3, 1, 2),
    )


def _chunks(problem: Problem) -> tuple[int, int]:
    """Value channels and query depths at a time: all of the one kind before more than one of the other."""
    points = math.prod(padded_grid(problem))
    chunk = _CHUNK if len(problem.grid) > 1 else _CHUNK_OF_SEQUENCES
    channels = max(1, min(problem.value_depth, chunk // points))
    return channels, max(1, min(problem.query_depth, chunk // (points * channels)))


def _parts(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def _spectra(values: Tensor, problem: Problem) -> Tensor:
    """(n, v, u) to F V (v, u, N_1.., N_D / 2 + 1)."""
    return _transform(values.permute(1, 2, 0).unflatten(-1, problem.grid), problem)


def _transform(maps: Tensor, problem: Problem) -> Tensor:
    """(.., S_1..S_D) to its spectrum on the padded grid: the last axis first, as long as the others are short."""
    *others, last = padded_grid(problem)
    at = maps.ndim - len(others) - 1
    spectra = torch.fft.rfft(maps, n=last)
    for i, side in enumerate(others):
        spectra = torch.fft.fft(spectra, n=side, dim=at + i)
    return spectra


def _transform_back(spectra: Tensor, problem: Problem) -> Tensor:
    """A spectrum on the padded grid to (.., n), each axis cut to the grid before the next is transformed."""
    *_, last = padded_grid(problem)
    at = spectra.ndim - len(problem.grid)
    for i, side in enumerate(problem.grid[:-1]):
        spectra = torch.fft.ifft(spectra, dim=at + i).narrow(at + i, 0, side)
    return torch.fft.irfft(spectra, n=last)[..., : problem.grid[-1]].flatten(at)


def _lambdas(kernel: Tensor, spectra: Tensor, problem: Problem) -> Tensor:
    """(k, u, N..) and (v, u, N..) to (k, v, n)."""
    if problem.intra_depth == 1:
        product = kernel * spectra.squeeze(1).unsqueeze(0)
    else:
        product = torch.stack([(of_depth * spectra).sum(dim=1) for of_depth in kernel])
    return _transform_back(product, problem)


def _fast_side(least: int) -> int:
    """The smallest even number from `least` on whose factors are all small; above 64 one with a factor of 8."""
    step = 8 if least > 64 else 2
    side = -(-least // step) * step
    while not _is_smooth(side):
        side += step
    return side


def _is_smooth(side: int) -> bool:
    for factor in _FAST_FACTORS:
        while side % factor == 0:
            side //= factor
    return side == 1
