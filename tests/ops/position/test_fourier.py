import pytest
import torch
from interactions import assert_all_close, make_inputs, run

import lambdanets as ln
from lambdanets.ops.position.fourier import BoundFourier, Fourier, next_fast_side, padded_grid
from lambdanets.ops.position.plan import ALGORITHMS
from lambdanets.ops.position.rates import built_in_rates

# grid, sides of the table, u, causal
CASES = {
    "sequence": ((13,), (5,), 0, False),
    "causal global sequence": ((13,), (25,), 0, True),
    "plane, intra-depth": ((4, 7), (3, 9), 2, False),
    "volume": ((3, 4, 5), (3, 3, 5), 0, False),
}
cases = pytest.mark.parametrize(("grid", "sides", "u", "causal"), CASES.values(), ids=CASES.keys())


class ChunkedFourier(Fourier):
    """Fourier with a fixed number of value channels and query depths per chunk."""

    def __init__(self, channels, depths):
        self.chunk = channels, depths

    def bind(self, problem, rates):
        return BoundFourier(problem, *self.chunk)


@cases
@pytest.mark.parametrize("chunk", [(1, 1), (3, 1), (5, 1), (5, 3)], ids="{0[0]} channels, {0[1]} depths".format)
def test_fourier_equals_lambda_order_for_any_chunk_size(monkeypatch, chunk, grid, sides, u, causal):
    monkeypatch.setitem(ALGORITHMS, "fourier", ChunkedFourier(*chunk))
    inputs = make_inputs(grid, sides, u)
    expected = run(inputs, grid, causal=causal, algorithm="lambda_order")
    assert_all_close(run(inputs, grid, causal=causal, algorithm="fourier"), expected)


@pytest.mark.parametrize("side", range(1, 40))
def test_padded_grid_avoids_wrap_around(side):
    for scope in range(1, 2 * side + 2, 2):
        problem = ln.plan(*make_inputs((side,), (scope,), k=1, v=1, heads=1, batch=1), (side,)).problem
        (length,) = padded_grid(problem)
        radius = min(scope // 2, side - 1)
        assert length > (side - 1) + radius


@pytest.mark.parametrize("minimum", [1, 2, 63, 64, 65, 97, 1031, 131071])
def test_next_fast_side_is_even_and_has_only_small_prime_factors(minimum):
    side = next_fast_side(minimum)
    assert minimum <= side <= max(minimum + 16, round(1.1 * minimum))
    assert side % (8 if minimum > 64 else 2) == 0
    for factor in (2, 3, 5, 7):
        while side % factor == 0:
            side //= factor
    assert side == 1


@cases
def test_grad_table_is_the_adjoint_of_prepare(grid, sides, u, causal):
    # Parseval: <F R, F G> = prod(N) <R, G> over full spectra of real maps
    problem = ln.plan(*make_inputs(grid, sides, u), grid, causal=causal).problem
    generator = torch.Generator().manual_seed(0)
    shape = (*problem.scope, problem.query_depth, problem.intra_depth)
    table = torch.randn(shape, generator=generator, dtype=torch.float64)
    bound = Fourier().bind(problem, built_in_rates("cpu", 1))
    (spectrum,) = bound.prepare(table)
    torch.testing.assert_close(bound.grad_table((spectrum.conj(),)), table)
