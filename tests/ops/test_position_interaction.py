import functools

import hypothesis.strategies as st
import pytest
import torch
from exactness import assert_error_within_budget
from hypothesis import given, settings
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import lambdanets as ln
from all_pairs import all_pairs
from lambdanets.ops import definition, position_interaction
from ops.position.interactions import make_inputs, supported_algorithms

ALGORITHMS = supported_algorithms(4, 4)
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)

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


@algorithms_and_cases
def test_every_algorithm_equals_the_definition_in_float64(id, algorithm, batch):
    grid, sides, u, dilation, causal = CASES[id]
    queries, table, values = make_inputs(grid, sides, u, batch)
    expected = definition.position_interaction(queries, table, values, grid, dilation=dilation, causal=causal)
    result = position_interaction(queries, table, values, grid, dilation=dilation, causal=causal, algorithm=algorithm)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12 * expected.abs().max().item())


@algorithms
def test_negated_views_of_complex_tensors_keep_their_sign(algorithm):
    views = [torch.complex(x, x).conj().imag for x in make_inputs((14, 9), (5, 7), 0)]
    content = torch.complex(x := torch.randn(2, 4, 5, dtype=torch.float64), x).conj().imag
    copies = [x.resolve_neg().requires_grad_() for x in (*views, content)]
    assert all(x.is_neg() for x in views)
    outputs, gradients = [], []
    for *factors, added in ([x.requires_grad_() for x in (*views, content)], copies):
        output = position_interaction(*factors, (14, 9), content=added, algorithm=algorithm)
        grad_output = torch.complex(output.detach(), output.detach()).conj().imag
        outputs.append(output)
        grad_output = grad_output if factors[0].is_neg() else grad_output.resolve_neg()
        gradients.append(torch.autograd.grad(output, (*factors, added), grad_output))
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("case", "dtype", "algorithm"),
    all_pairs(
        [((6, 9), (5, 7), 0), ((5, 5), (23, 23), 0), ((6, 5), (3, 5), 2)],
        [torch.float32, torch.bfloat16, torch.float16],
        ALGORITHMS,
    ),
)
def test_error_is_at_most_twice_the_reference_error(case, dtype, algorithm):
    grid, sides, u = case
    inputs = make_inputs(grid, sides, u, k=16, v=8, dtype=dtype)
    content = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact, reference = (
        definition.position_interaction(*x, grid) + x[0] @ c.unsqueeze(1)
        for x, c in (([x.double() for x in inputs], content.double()), (inputs, content))
    )
    result = position_interaction(*inputs, grid, content=content, algorithm=algorithm)
    assert result.dtype == dtype
    assert_error_within_budget(result, reference, exact)


@pytest.mark.parametrize(
    ("case", "dtype", "algorithm"),
    all_pairs([((5, 6), (5, 7)), ((14, 13), (7, 7)), ((9, 10), (23, 23))], [torch.float32, torch.bfloat16], ALGORITHMS),
)
def test_gradient_error_is_at_most_twice_the_reference_error(case, dtype, algorithm):
    grid, sides = case
    inputs, references, exact_results = reference_and_exact_gradients(grid, sides, dtype)
    results = gradients(lambda *x: position_interaction(*x, algorithm=algorithm), inputs, grid)
    for result, reference, exact in zip(results, references, exact_results, strict=True):
        assert_error_within_budget(result, reference, exact)


def gradients(function, inputs, grid):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*inputs, grid)
    grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    return torch.autograd.grad(output, inputs, grad_output.to(output.dtype))


@functools.cache  # slow, and the same for all algorithms
def reference_and_exact_gradients(grid, sides, dtype):
    inputs = make_inputs(grid, sides, 0, k=8, v=8, dtype=dtype)
    exact = gradients(definition.position_interaction, [x.double() for x in inputs], grid)
    return inputs, gradients(definition.position_interaction, inputs, grid), exact


@algorithms_and_cases
def test_first_and_second_derivatives(id, algorithm, batch):
    grid, sides, u, dilation, causal = CASES[id]
    inputs = make_inputs(grid, sides, u, batch=batch, heads=2, k=2, v=2)
    for tensor in inputs:
        tensor.requires_grad_()

    def function(*x):
        return position_interaction(*x, grid, dilation=dilation, causal=causal, algorithm=algorithm)

    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


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
def test_causal_outputs_do_not_depend_on_later_positions(algorithm):
    grid = (4, 5)
    queries, table, values = make_inputs(grid, (7, 5), 0)
    changed = values.clone()
    changed[:, 11:] = 1e6
    before, after = (
        position_interaction(queries, table, v, grid, causal=True, algorithm=algorithm) for v in (values, changed)
    )
    # Fourier transforms are over whole rows or maps, so future values cancel only up to rounding.
    rounding = 1e-14 * 1e6 if algorithm in ("row_transform", "native") else 0
    torch.testing.assert_close(before[:, :, :11], after[:, :, :11], rtol=0, atol=100 * rounding)
    assert (before[:, :, 11:] - after[:, :, 11:]).abs().max() > 1e5


@algorithms
def test_forward_and_backward_are_deterministic(algorithm):
    def run():
        inputs = [x.requires_grad_() for x in make_inputs((8, 9), (7, 7), 0, k=8, v=8, dtype=torch.float32)]
        output = position_interaction(*inputs, (8, 9), algorithm=algorithm)
        return [output, *torch.autograd.grad(output.square().sum(), inputs)]

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


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


@algorithms
def test_forward_mode_agrees_with_reverse_mode(algorithm):
    inputs = make_inputs((3, 4), (3, 5), 0)
    tangents = [torch.randn_like(x) for x in inputs]

    def function(*x):
        return position_interaction(*x, (3, 4), algorithm=algorithm)

    _, forward = torch.func.jvp(function, tuple(inputs), tuple(tangents))
    _, vjp = torch.func.vjp(function, *inputs)
    backward = sum((g * t).sum() for g, t in zip(vjp(forward), tangents, strict=True))
    torch.testing.assert_close(forward.square().sum(), backward)
    with torch.no_grad(), forward_ad.dual_level():
        output = function(*map(forward_ad.make_dual, inputs, tangents))
        torch.testing.assert_close(forward_ad.unpack_dual(output).tangent, forward)


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
    ({"queries": torch.zeros(2, 0, 12, 4)}, "h of queries must be an integer of at least 1, got 0"),
    ({"table": torch.zeros(4, 3, 4)}, "table must have odd sides"),
    ({"table": torch.zeros(3, 3, 8)}, r"table must have 2 offset axes and then \(k,\) = \(4,\)"),
    ({"table": torch.zeros(3, 3, 4, dtype=DOUBLE)}, "table must have the dtype of queries, torch.float32.*float64"),
    ({"values": torch.zeros(2, 12)}, r"values must be \(b, n, v\)"),
    ({"values": torch.zeros(3, 12, 5)}, r"values must have \(b, n\) = \(2, 12\) like queries"),
    ({"values": torch.zeros(2, 12, 5, 2)}, r"then \(k, u\) = \(4, 2\)"),
    ({"values": torch.zeros(2, 12, 0)}, "v of values must be an integer of at least 1, got 0"),
    ({"values": torch.zeros(2, 12, 5).long()}, "values must be float16.*got torch.int64"),
    ({"content": torch.zeros(2, 4, 6)}, r"content must be \(b, k, v\) = \(2, 4, 5\), got shape \(2, 4, 6\)"),
    ({"content": torch.zeros(2, 4, 5, dtype=DOUBLE)}, "content must have the dtype of queries"),
    ({"grid": (3, 5)}, r"grid must have 12 positions.* got \(3, 5\) with 15"),
    ({"grid": (1, 1, 3, 4)}, "grid must have 1, 2 or 3 dimensions"),
    ({"grid": 12}, "grid must be a sequence of 1, 2 or 3 integers, got 12"),
    ({"grid": (12, 0)}, r"grid\[1\] must be an integer of at least 1, got 0"),
    ({"dilation": 0}, "dilation must be an integer of at least 1, got 0"),
    ({"algorithm": "fastest"}, "algorithm must be one of auto, .*got 'fastest'"),
]


@pytest.mark.parametrize("function", [position_interaction, ln.plan])
@pytest.mark.parametrize(("changes", "message"), INVALID_ARGUMENTS)
def test_rejects_invalid_arguments(changes, message, function):
    shapes = {"queries": (2, 3, 12, 4), "table": (3, 3, 4), "values": (2, 12, 5)}
    arguments = {name: torch.zeros(shape) for name, shape in shapes.items()} | {"grid": (3, 4)} | changes
    with pytest.raises(ValueError, match=message):
        function(**arguments)
