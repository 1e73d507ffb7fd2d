import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import lambdanets as ln
from all_pairs import all_pairs
from lambdanets.ops import position_interaction
from ops.position.interactions import (
    assert_all_close,
    define,
    make_factors,
    make_inputs,
    run_with_content,
    supported_algorithms,
    with_gradients,
)

ALGORITHMS = supported_algorithms(4, 4)
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)
GRID, SIDES = (3, 4), (3, 5)

# grid, sides of the table, u, dilation, causal
CASES = {
    "1d": ((9,), (5,), 0, 1, False),
    "1d causal dilated": ((9,), (5,), 0, 2, True),
    "2d odd": ((5, 7), (3, 5), 0, 1, False),
    "2d even": ((4, 6), (5, 3), 0, 1, False),
    "2d scope larger than the map": ((3, 5), (23, 23), 0, 1, False),
    "2d intra-depth": ((4, 5), (3, 5), 2, 1, False),
    "2d dilated": ((7, 6), (5, 5), 0, 2, False),
    "2d causal": ((4, 5), (5, 7), 0, 1, True),
    "2d intra-depth dilated causal, scope larger than the map": ((4, 3), (9, 9), 3, 3, True),
    "3d": ((2, 4, 3), (3, 3, 5), 0, 1, False),
    "one position": ((1, 1), (3, 3), 0, 1, False),
    "scope of one": ((4, 4), (1, 1), 0, 1, False),
}


algorithms_and_cases = pytest.mark.parametrize(
    ("id", "algorithm", "batch"),
    all_pairs([*CASES], ALGORITHMS, (1, 2), valid=lambda id, name, _: name in supported_algorithms(*CASES[id][0])),
)


def make_function(grid, **options):
    return lambda q, r, v, c: position_interaction(q, r, v, grid, content=c, **options)


@algorithms_and_cases
def test_outputs_and_gradients_equal_the_definition_in_float64(id, algorithm, batch):
    grid, sides, u, dilation, causal = CASES[id]
    factors, options = make_factors(grid, sides, u, batch=batch), {"dilation": dilation, "causal": causal}
    expected = with_gradients(lambda *x: define(*x, grid, **options), factors)
    assert_all_close(run_with_content(factors, grid, **options, algorithm=algorithm), expected, 1e-12)


@algorithms_and_cases
def test_first_and_second_derivatives(id, algorithm, batch):
    grid, sides, u, dilation, causal = CASES[id]
    factors = [x.requires_grad_() for x in make_factors(grid, sides, u, batch=batch, heads=2, k=2, v=2)]
    function = make_function(grid, dilation=dilation, causal=causal, algorithm=algorithm)
    assert gradcheck(function, factors, fast_mode=True)
    assert gradgradcheck(function, factors, fast_mode=True)


def test_a_dilation_beyond_the_grid_needs_no_more_memory_than_one_of_its_sides():
    factors, options = make_factors(GRID, SIDES), {"dilation": 10**9, "causal": True}
    assert ln.plan(*factors[:3], GRID, **options).problem.batch == 2 * max(GRID) ** 2
    expected = with_gradients(lambda *x: define(*x, GRID, **options), factors)
    assert_all_close(run_with_content(factors, GRID, **options), expected, 1e-12)


@pytest.mark.parametrize("frozen", range(4), ids=["queries", "table", "values", "content"])
def test_gradients_with_one_frozen_factor_equal_the_definition(frozen):
    factors = make_factors(GRID, SIDES)
    for i, tensor in enumerate(factors):
        tensor.requires_grad_(i != frozen)
    trainable = [x for x in factors if x.requires_grad]
    loss, expected = make_function(GRID)(*factors).pow(3).sum(), define(*factors, GRID).pow(3).sum()
    assert_all_close(torch.autograd.grad(loss, trainable), torch.autograd.grad(expected, trainable))
    assert gradgradcheck(make_function(GRID), factors, fast_mode=True)


@algorithms
def test_hessian_by_forward_over_reverse_equals_reverse_over_reverse(algorithm):
    factors = make_factors(GRID, SIDES, batch=1, heads=2, k=2, v=2)

    def loss(*x):
        return make_function(GRID, algorithm=algorithm)(*x).pow(3).sum()

    argnums = (0, 1, 2, 3)
    forward = torch.func.hessian(loss, argnums=argnums)(*factors)
    backward = torch.func.jacrev(torch.func.jacrev(loss, argnums=argnums), argnums=argnums)(*factors)
    torch.testing.assert_close(forward, backward, rtol=1e-10, atol=1e-10)


def test_forward_over_forward_is_refused():
    factors = make_factors(GRID, SIDES)

    def product(*x):
        return torch.func.jvp(make_function(GRID), x, tuple(factors))[1]

    with pytest.raises(ValueError, match="at most one jvp"):
        torch.func.jvp(product, tuple(factors), tuple(factors))


@algorithms
def test_forward_mode_agrees_with_reverse_mode(algorithm):
    factors, function = make_factors(GRID, SIDES), make_function(GRID, algorithm=algorithm)
    tangents = [torch.randn_like(x) for x in factors]
    _, forward = torch.func.jvp(function, tuple(factors), tuple(tangents))
    _, vjp = torch.func.vjp(function, *factors)
    backward = sum((g * t).sum() for g, t in zip(vjp(forward), tangents, strict=True))
    torch.testing.assert_close(forward.square().sum(), backward)
    with torch.no_grad(), forward_ad.dual_level():
        output = function(*map(forward_ad.make_dual, factors, tangents))
        torch.testing.assert_close(forward_ad.unpack_dual(output).tangent, forward)


@algorithms
def test_vmap_gives_per_sample_gradients(algorithm):
    queries, table, values, content = make_factors(GRID, SIDES)

    def loss(table, q, v, c):
        return make_function(GRID, algorithm=algorithm)(q[None], table, v[None], c[None]).square().sum()

    grad = torch.func.grad(loss, argnums=(0, 3))
    batched = torch.func.vmap(grad, (None, 0, 0, 0))(table, queries, values, content)
    separate = [grad(table, *example) for example in zip(queries, values, content, strict=True)]
    for gradient, per_example in zip(batched, zip(*separate, strict=True), strict=True):
        torch.testing.assert_close(gradient, torch.stack(per_example), rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    grid=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    radius=st.integers(0, 4),
    u=st.integers(0, 2),
    dilation=st.integers(1, 3),
    causal=st.booleans(),
)
def test_all_algorithms_agree(grid, radius, u, dilation, causal):
    inputs = make_inputs(grid, (2 * radius + 1,) * len(grid), u, k=3, v=2)
    options = {"dilation": dilation, "causal": causal}
    first, *others = (
        position_interaction(*inputs, grid, **options, algorithm=name) for name in supported_algorithms(*grid)
    )
    assert len(others) >= 2
    for result in others:
        torch.testing.assert_close(result, first, rtol=1e-11, atol=1e-11)


@algorithms
def test_accepts_any_strides(algorithm):
    queries, table, values = make_inputs((4, 6), (5, 5), 0)
    strided = (
        queries.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
        table.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        values.transpose(1, 2).contiguous().transpose(1, 2),
    )
    expected = position_interaction(queries, table, values, (4, 6), algorithm=algorithm)
    torch.testing.assert_close(position_interaction(*strided, (4, 6), algorithm=algorithm), expected)


def test_intermediate_sums_may_exceed_the_range_of_float16():
    # The sum of 529 products exceeds the range of float16; the output, scaled down by the queries, does not.
    queries = torch.full((1, 1, 529, 1), 2.0**-10, dtype=torch.float16)
    table = torch.full((45, 45, 1), 16.0, dtype=torch.float16)
    values = torch.full((1, 529, 1), 256.0, dtype=torch.float16)
    result = position_interaction(queries, table, values, (23, 23))
    assert result.dtype == torch.float16
    assert result[0, 0, 264].item() == pytest.approx(529 * 16 * 256 / 1024, rel=1e-3)


@pytest.mark.parametrize(("dtype", "result"), [(torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_autocast_to_float16_returns_float32_as_its_sums(dtype, result):
    inputs = make_inputs((4, 4), (3, 3), 0, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        assert position_interaction(*inputs, (4, 4)).dtype == result


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_backward_inside_autocast_is_bit_identical_to_backward_outside(dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 12, 3), (3, 5, 3), (2, 12, 5), (2, 3, 5)
    original = [100 * torch.randn(shape, generator=generator) for shape in shapes]
    results = []
    for inside in False, True:
        inputs = [x.clone().requires_grad_() for x in original]
        with torch.autocast("cpu", dtype):
            output = position_interaction(*inputs[:3], (3, 4), content=inputs[3])
        with torch.autocast("cpu", dtype, enabled=inside):
            grad_output = (output.detach() / 3).requires_grad_()
            gradients = torch.autograd.grad(output, inputs, grad_output, create_graph=True)
            directions = [x.detach() / 7 for x in gradients]
            second = torch.autograd.grad(gradients, [grad_output, *inputs], directions)
        results.append([output, *gradients, *second])
    for outside_result, inside_result in zip(*results, strict=True):
        assert torch.equal(outside_result, inside_result)


DOUBLE = torch.float64
INVALID_ARGUMENTS = [
    ({"queries": None}, "queries must be a tensor, got NoneType"),
    ({"queries": torch.zeros(2, 12, 4)}, r"queries must be \(b, h, n, k\)"),
    ({"table": torch.zeros(4, 3, 4)}, "table must have odd sides"),
    ({"table": torch.zeros(3, 3, 8)}, r"table must be \(r_1, r_2, k\) with k = 4, got shape \(3, 3, 8\)"),
    ({"table": torch.zeros(3, 3, 4, dtype=DOUBLE)}, "table must have the dtype of queries, torch.float32.*float64"),
    ({"values": torch.zeros(3, 12, 5)}, r"values must be .* with b = 2, n = 12, got shape \(3, 12, 5\)"),
    ({"values": torch.zeros(2, 12, 0)}, "v of values must be an integer of at least 1, got 0"),
    ({"values": torch.zeros(2, 12, 5).long()}, "values must be float16.*got torch.int64"),
    ({"content": torch.zeros(2, 4, 6)}, r"content must be \(b, k, v\) with b = 2, k = 4, v = 5, got shape \(2, 4, 6\)"),
    ({"grid": (3, 5)}, r"grid must have 12 positions.* got \(3, 5\) with 15"),
    ({"grid": (1, 1, 3, 4)}, "grid must have 1, 2 or 3 dimensions"),
    ({"grid": (12, 0)}, r"grid\[1\] must be an integer of at least 1, got 0"),
    ({"dilation": 0}, "dilation must be an integer of at least 1, got 0"),
    ({"algorithm": "fastest"}, "algorithm must be one of auto, .*got 'fastest'"),
]


@pytest.mark.parametrize(("changes", "message"), INVALID_ARGUMENTS)
def test_rejects_invalid_arguments(changes, message):
    shapes = {"queries": (2, 3, 12, 4), "table": (3, 3, 4), "values": (2, 12, 5)}
    arguments = {name: torch.zeros(shape) for name, shape in shapes.items()} | {"grid": (3, 4)} | changes
    for function in (position_interaction, ln.plan):
        with pytest.raises(ValueError, match=message):
            function(**arguments)


@algorithms
def test_matches_a_2x2_example_computed_by_hand(algorithm):
    # One query depth, one value channel, one head; values 1 2 / 3 4; table indexed by offsets (y, x).
    table = torch.tensor([[0.0, 1.0, 0.0], [10.0, 100.0, 1000.0], [0.0, 10000.0, 0.0]]).unsqueeze(-1)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1)
    queries = torch.tensor([1.0, 1.0, 2.0, -1.0]).view(1, 1, 4, 1)
    # top left: itself 100*1, right 1000*2, below 10000*3; and so on
    by_hand = [32100.0, 40210.0, 2 * (300 + 4000 + 1), -(400 + 30 + 2)]
    result = position_interaction(queries, table, values, (2, 2), algorithm=algorithm)
    # rounding errors of Fourier transforms are relative to the largest number
    assert result.flatten().tolist() == pytest.approx(by_hand, abs=1e-3)
