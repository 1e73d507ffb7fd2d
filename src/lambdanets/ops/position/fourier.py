"""Fourier: position lambdas as products of spectra; the cost hardly depends on the scope.

lambda[k,v,:] = F^-1( sum_u conj(F R[k,u,:]) F V[v,u,:] ) on a grid that is zero-padded to avoid wrap-around, and
y = sum_k q lambda. Cost: b k v n log n. Suitable for large and global scopes on large grids, and for long sequences.

Spectra of values are computed once per chunk of value channels. For each chunk of query depths, the product of spectra
is transformed back, cropped to the grid axis by axis, and applied, while the chunk is still in the cache.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lambdanets.ops.position.algorithm import Algorithm, BoundPositionAlgorithm, Gradients
from lambdanets.ops.position.problem import Cost, NeedsGrad, Prepared, Problem
from lambdanets.ops.position.rates import Rates

# Maximum elements of a chunk of lambdas on the padded grid; larger for sequences, whose transforms are contiguous.
_CHUNK_ELEMENTS, _SEQUENCE_CHUNK_ELEMENTS = 1 << 19, 1 << 21
_FAST_FACTORS = (2, 3, 5, 7)


class Fourier(Algorithm):
    name = "fourier"

    def cost(self, problem: Problem, rates: Rates) -> Cost:
        p = problem
        points = math.prod(padded_grid(p))
        num_maps = p.batch * p.value_depth * p.intra_depth
        num_lambdas = p.batch * p.value_depth * p.query_depth
        channels, depths = _chunk_sizes(p)
        num_transforms = num_maps + num_lambdas
        forward = rates.fft_seconds(points * num_transforms, points)
        backward = rates.fft_seconds(points * (2 * num_maps + 2 * num_lambdas), points)
        # multiply spectra, then apply the lambdas head by head
        applied_bytes = 4.0 * p.heads * num_lambdas * p.num_positions
        forward += rates.copy_seconds(4.0 * points * num_lambdas * p.intra_depth + 2 * applied_bytes)
        backward += rates.copy_seconds(12.0 * points * num_lambdas * p.intra_depth + 6 * applied_bytes)
        preparation_seconds = rates.fft_seconds(points * p.query_depth * p.intra_depth, points)
        num_calls = p.batch * -(-p.value_depth // channels) * (8 + -(-p.query_depth // depths) * (6 + depths))
        spectrum_bytes = 4 * points * (p.query_depth * p.intra_depth + p.intra_depth * channels)
        return Cost(
            operations=round(2.5 * points * math.log2(max(2, points)) * num_transforms) + p.apply_operations,
            workspace_bytes=max(1, p.dtype.itemsize // 4) * (3 * spectrum_bytes + 24 * points * channels * depths),
            seconds=forward + preparation_seconds / 4 + rates.call_overhead(num_calls),
            backward_seconds=backward + 1.75 * preparation_seconds + rates.call_overhead(3 * num_calls),
        )

    def bind(self, problem: Problem, rates: Rates) -> "BoundFourier":
        return BoundFourier(problem, *_chunk_sizes(problem))


class BoundFourier(BoundPositionAlgorithm):
    """channels, depths: value channels and query depths per chunk. Examples are processed one at a time."""

    def __init__(self, problem: Problem, channels: int, depths: int) -> None:
        super().__init__(problem)
        self._padded = padded_grid(problem)
        self._axes = tuple(range(2, 2 + len(self._padded)))
        self._channel_slices = list(_slices(problem.value_depth, channels))
        self._depth_slices = list(_slices(problem.query_depth, depths))

    def prepare(self, table: Tensor) -> Prepared:
        """Return conj(F R) (k, u, N_1.., N_D / 2 + 1), with offset 0 at index 0 and negative offsets at the end."""
        padded = table.new_zeros(*table.shape[-2:], *self._padded)
        view = padded
        for axis, side in zip(self._axes, self.problem.scope, strict=True):
            view = view.narrow(axis, 0, side)
        view.copy_(table.movedim((-2, -1), (0, 1)))
        padded = padded.roll([-before for before in self.problem.before], self._axes)
        return (torch.fft.rfftn(padded, dim=self._axes).conj().resolve_conj(),)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        """The adjoint of `prepare`; grad_prepared: sum of conj(F G) F V over examples and v, with G = grad_lambdas."""
        padded = torch.fft.irfftn(grad_prepared[0], s=self._padded, dim=self._axes)
        padded = padded.roll(self.problem.before, self._axes)
        for axis, side in zip(self._axes, self.problem.scope, strict=True):
            padded = padded.narrow(axis, 0, side)
        return padded.movedim((0, 1), (-2, -1))

    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        p = self.problem
        (kernel,) = prepared
        output = queries.new_zeros(len(queries), p.heads, p.value_depth, p.num_positions)
        for example in range(len(queries)):
            query_maps = queries[example].transpose(1, 2).contiguous()  # (h, k, n)
            for channels in self._channel_slices:
                spectra = self._spectra(values[example, :, channels])
                for depths in self._depth_slices:
                    for k, lambdas in enumerate(self._lambdas(kernel[depths], spectra), depths.start):
                        output[example, :, channels].addcmul_(query_maps[:, k, None], lambdas)
        return output.transpose(2, 3)

    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs_grad: NeedsGrad
    ) -> Gradients:
        """Recomputes the lambdas."""
        p = self.problem
        (kernel,) = prepared
        grad_queries = grad_kernel = grad_values = None
        if needs_grad.queries:
            grad_queries = queries.new_zeros(len(queries), p.heads, p.query_depth, p.num_positions)
        if needs_grad.table:
            grad_kernel = torch.zeros_like(kernel)
        if needs_grad.values:
            grad_values = values.new_zeros(len(values), p.value_depth, p.intra_depth, p.num_positions)
        for example in range(len(queries)):
            query_maps = queries[example].transpose(1, 2).contiguous()  # (h, k, n)
            for channels in self._channel_slices:
                grad_maps = grad_output[example, :, :, channels].transpose(1, 2).contiguous()  # (h, v, n)
                spectra = self._spectra(values[example, :, channels])
                grad_spectra = torch.zeros_like(spectra)
                for depths in self._depth_slices:
                    if grad_queries is not None:
                        for k, lambdas in enumerate(self._lambdas(kernel[depths], spectra), depths.start):
                            grad_queries[example, :, k] += (grad_maps * lambdas).sum(dim=1)
                    if grad_kernel is None and grad_values is None:
                        continue
                    grad_lambdas = query_maps[0, depths, None] * grad_maps[0]  # (k, v, n)
                    for head in range(1, p.heads):
                        grad_lambdas.addcmul_(query_maps[head, depths, None], grad_maps[head])
                    grad_lambdas = self._transform(grad_lambdas.unflatten(-1, p.grid))
                    for k, grad_lambda in enumerate(grad_lambdas, depths.start):
                        if grad_values is not None:
                            grad_spectra += grad_lambda.unsqueeze(1) * kernel[k].conj()
                        if grad_kernel is not None:
                            grad_kernel[k] += (grad_lambda.conj().unsqueeze(1) * spectra).sum(dim=0)
                if grad_values is not None:
                    grad_values[example, channels] = self._transform_back(grad_spectra)
        return (
            None if grad_queries is None else grad_queries.transpose(2, 3),
            None if grad_kernel is None else (grad_kernel,),
            None if grad_values is None else grad_values.permute(0, 3, 1, 2),
        )

    def _spectra(self, values: Tensor) -> Tensor:
        """Transform values (n, v, u) to F V (v, u, N_1.., N_D / 2 + 1)."""
        return self._transform(values.permute(1, 2, 0).unflatten(-1, self.problem.grid))

    def _transform(self, maps: Tensor) -> Tensor:
        """Transform (.., S_1..S_D) on the padded grid, starting with the last axis, before the others are padded."""
        *others, last = self._padded
        first = maps.ndim - len(self._padded)
        spectra = torch.fft.rfft(maps, n=last)
        for axis, side in enumerate(others, first):
            spectra = torch.fft.fft(spectra, n=side, dim=axis)
        return spectra

    def _transform_back(self, spectra: Tensor) -> Tensor:
        """Transform a spectrum on the padded grid to (.., n), cropping each axis before transforming the next."""
        *others, last = self.problem.grid
        first = spectra.ndim - len(self._padded)
        for axis, side in enumerate(others, first):
            spectra = torch.fft.ifft(spectra, dim=axis).narrow(axis, 0, side)
        return torch.fft.irfft(spectra, n=self._padded[-1])[..., :last].flatten(first)

    def _lambdas(self, kernel: Tensor, spectra: Tensor) -> Tensor:
        """Compute lambdas (k, v, n) from the spectra of table (k, u, N..) and values (v, u, N..)."""
        if self.problem.intra_depth == 1:
            product = kernel * spectra.squeeze(1).unsqueeze(0)
        else:
            product = torch.stack([(kernel_k * spectra).sum(dim=1) for kernel_k in kernel])
        return self._transform_back(product)


def padded_grid(problem: Problem) -> tuple[int, ...]:
    """Return sides with small prime factors, large enough that no offset of the table wraps around to the grid."""
    p = problem
    return tuple(next_fast_side(side + max(b, a)) for side, b, a in zip(p.grid, p.before, p.after, strict=True))


def next_fast_side(minimum: int) -> int:
    """Return the smallest even number >= `minimum` with only small prime factors; above 64, a multiple of 8."""
    multiple = 8 if minimum > 64 else 2
    side = -(-minimum // multiple) * multiple
    while not _is_smooth(side):
        side += multiple
    return side


def _is_smooth(side: int) -> bool:
    for factor in _FAST_FACTORS:
        while side % factor == 0:
            side //= factor
    return side == 1


def _chunk_sizes(problem: Problem) -> tuple[int, int]:
    """Return the value channels and query depths per chunk; more than one query depth only if all channels fit."""
    points = math.prod(padded_grid(problem))
    elements = _CHUNK_ELEMENTS if len(problem.grid) > 1 else _SEQUENCE_CHUNK_ELEMENTS
    channels = max(1, min(problem.value_depth, elements // points))
    return channels, max(1, min(problem.query_depth, elements // (points * channels)))


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))
