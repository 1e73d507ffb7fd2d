"""The position interaction with a content lambda, against the sum of separate terms."""

import pytest
import torch
from interactions import Spy, assert_all_close, make_inputs, supported_algorithms, with_gradients
from torch.autograd import gradcheck, gradgradcheck

from lambdanets.ops import definition, position_interaction
from lambdanets.ops.position.plan import ALGORITHMS
from ops.exactness import assert_error_within_budget

GRID, SIDES = (3, 4), (3, 5)
algorithms = pytest.mark.parametrize("algorithm", supported_algorithms(*GRID))


def make_factors(dtype=torch.float64, **sizes):
    """Queries, table, values and content lambda."""
    inputs = make_inputs(GRID, SIDES, 0, dtype=dtype, **sizes)
    batch, k, v = len(inputs[0]), inputs[0].shape[3], inputs[2].shape[2]
    return [*inputs, torch.randn(batch, k, v, generator=torch.Generator().manual_seed(5)).to(dtype)]


def interaction(algorithm="auto", **options):
    return lambda q, r, v, c: position_interaction(q, r, v, GRID, content=c, algorithm=algorithm, **options)


def separate_terms(queries, table, values, content, **options):
    return position_interaction(queries, table, values, GRID, **options) + queries @ content.unsqueeze(1)


@algorithms
@pytest.mark.parametrize("options", [{}, {"dilation": 2}, {"causal": True}], ids=str)
def test_outputs_and_gradients_equal_the_sum_of_both_terms(algorithm, options):
    inputs = make_factors()
    results = with_gradients(interaction(algorithm, **options), inputs)
    assert_all_close(results, with_gradients(lambda *x: separate_terms(*x, **options), inputs))


@algorithms
@pytest.mark.parametrize("batch", [1, 2])
def test_first_and_second_derivatives(algorithm, batch):
    inputs = [x.requires_grad_() for x in make_factors(batch=batch, heads=2, k=2, v=2)]
    assert gradcheck(interaction(algorithm), inputs, fast_mode=True)
    assert gradgradcheck(interaction(algorithm), inputs, fast_mode=True)


@pytest.mark.parametrize("fixed", range(4), ids=["queries", "table", "values", "content"])
def test_gradients_with_one_frozen_factor_equal_the_reference(fixed):
    inputs = make_factors()
    for i, tensor in enumerate(inputs):
        tensor.requires_grad_(i != fixed)
    others = [x for x in inputs if x.requires_grad]
    loss, expected = interaction()(*inputs).pow(3).sum(), separate_terms(*inputs).pow(3).sum()
    assert_all_close(torch.autograd.grad(loss, others), torch.autograd.grad(expected, others))
    assert gradgradcheck(interaction(), inputs, fast_mode=True)


def test_hessian_by_forward_over_backward_equals_backward_twice():
    inputs = make_factors(batch=1, heads=2, k=2, v=2)

    def loss(*x):
        return interaction()(*x).pow(3).sum()

    every = (0, 1, 2, 3)
    forward = torch.func.hessian(loss, argnums=every)(*inputs)
    backward = torch.func.jacrev(torch.func.jacrev(loss, argnums=every), argnums=every)(*inputs)
    torch.testing.assert_close(forward, backward, rtol=1e-10, atol=1e-10)


def test_vmap_gives_per_sample_gradients():
    queries, table, values, content = make_factors()

    def loss(table, q, v, c):
        return interaction()(q[None], table, v[None], c[None]).square().sum()

    grad = torch.func.grad(loss, argnums=(0, 3))
    batched = torch.func.vmap(grad, (None, 0, 0, 0))(table, queries, values, content)
    alone = [grad(table, *factors) for factors in zip(queries, values, content, strict=True)]
    for one, others in zip(batched, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(others), rtol=1e-12, atol=1e-12)


@algorithms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_is_at_most_twice_that_of_the_plain_formula(algorithm, dtype):
    low = make_factors(dtype, k=16, v=8)
    queries, table, values, content = low
    exact = definition.position_interaction(*(x.double() for x in low[:3]), GRID)
    exact = exact + queries.double() @ content.double().unsqueeze(1)
    plain = definition.position_interaction(queries, table, values, GRID) + queries @ content.unsqueeze(1)
    fast = interaction(algorithm)(*low)
    assert fast.dtype == dtype
    assert_error_within_budget(fast, plain, exact)


def test_split_batch_uses_the_content_lambda_of_each_example(monkeypatch):
    inputs = make_factors(batch=5)
    batched = with_gradients(interaction("query_order"), inputs)
    monkeypatch.setitem(ALGORITHMS, "query_order", Spy("query_order", max_batch=2))
    assert_all_close(with_gradients(interaction("query_order"), inputs), batched)


def test_inputs_are_not_modified():
    inputs = make_factors()
    before = [x.clone() for x in inputs]
    with_gradients(interaction(), inputs)
    with torch.no_grad():
        interaction()(*inputs)
    assert all(torch.equal(*pair) for pair in zip(inputs, before, strict=True))


def test_compiles_fullgraph_with_the_same_gradients():
    torch.compiler.reset()
    inputs = [x.requires_grad_() for x in make_factors()]
    function = interaction(dilation=2)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    one, other = (torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in (compiled, function))
    assert_all_close(one, other, 1e-12)


def test_exports_with_the_content_term():
    class Both(torch.nn.Module):
        def forward(self, *x):
            return interaction()(*x)

    inputs = tuple(make_factors())
    exported = torch.export.export(Both(), inputs).module()
    torch.testing.assert_close(exported(*inputs), interaction()(*inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            torch.zeros(2, 4, 6, dtype=torch.float64),
            r"content must be \(b, k, v\) = \(2, 4, 5\), got shape \(2, 4, 6\)",
        ),
        (
            torch.zeros(2, 4, 5),
            "content must have the dtype of queries, torch.float64, outside autocast; got torch.float32",
        ),
        ([0.0], "content must be a tensor, got list"),
    ],
)
def test_rejects_invalid_arguments(content, message):
    with pytest.raises(ValueError, match=message):
        interaction()(*make_inputs(GRID, SIDES), content)
