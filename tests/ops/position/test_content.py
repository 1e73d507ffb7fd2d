"""The position interaction with a content lambda, against the sum of separate terms."""

import pytest
import torch
from interactions import Spy, assert_all_close, make_inputs, supported_algorithms, with_gradients
from torch.autograd import gradcheck, gradgradcheck

from lambdanets.ops import position_interaction
from lambdanets.ops.position.choose import ALGORITHMS

GRID, SIDES = (3, 4), (3, 5)
algorithms = pytest.mark.parametrize("algorithm", supported_algorithms(*GRID))


def make_factors(dtype=torch.float64, **sizes):
    """Make queries, table, values and content lambda."""
    inputs = make_inputs(GRID, SIDES, 0, dtype=dtype, **sizes)
    batch, k, v = len(inputs[0]), inputs[0].shape[3], inputs[2].shape[2]
    return [*inputs, torch.randn(batch, k, v, generator=torch.Generator().manual_seed(5)).to(dtype)]


def make_interaction(algorithm="auto", **options):
    return lambda q, r, v, c: position_interaction(q, r, v, GRID, content=c, algorithm=algorithm, **options)


def separate_terms(queries, table, values, content, **options):
    return position_interaction(queries, table, values, GRID, **options) + queries @ content.unsqueeze(1)


@algorithms
@pytest.mark.parametrize("options", [{}, {"dilation": 2}, {"causal": True}], ids=str)
def test_outputs_and_gradients_equal_the_sum_of_both_terms(algorithm, options):
    inputs = make_factors()
    results = with_gradients(make_interaction(algorithm, **options), inputs)
    assert_all_close(results, with_gradients(lambda *x: separate_terms(*x, **options), inputs))


@algorithms
@pytest.mark.parametrize("batch", [1, 2])
def test_first_and_second_derivatives(algorithm, batch):
    inputs = [x.requires_grad_() for x in make_factors(batch=batch, heads=2, k=2, v=2)]
    assert gradcheck(make_interaction(algorithm), inputs, fast_mode=True)
    assert gradgradcheck(make_interaction(algorithm), inputs, fast_mode=True)


@pytest.mark.parametrize("frozen", range(4), ids=["queries", "table", "values", "content"])
def test_gradients_with_one_frozen_factor_equal_the_reference(frozen):
    inputs = make_factors()
    for i, tensor in enumerate(inputs):
        tensor.requires_grad_(i != frozen)
    trainable = [x for x in inputs if x.requires_grad]
    loss, expected = make_interaction()(*inputs).pow(3).sum(), separate_terms(*inputs).pow(3).sum()
    assert_all_close(torch.autograd.grad(loss, trainable), torch.autograd.grad(expected, trainable))
    assert gradgradcheck(make_interaction(), inputs, fast_mode=True)


@algorithms
def test_hessian_by_forward_over_reverse_equals_reverse_over_reverse(algorithm):
    inputs = make_factors(batch=1, heads=2, k=2, v=2)

    def loss(*x):
        return make_interaction(algorithm)(*x).pow(3).sum()

    argnums = (0, 1, 2, 3)
    forward = torch.func.hessian(loss, argnums=argnums)(*inputs)
    backward = torch.func.jacrev(torch.func.jacrev(loss, argnums=argnums), argnums=argnums)(*inputs)
    torch.testing.assert_close(forward, backward, rtol=1e-10, atol=1e-10)


@algorithms
def test_vmap_gives_per_sample_gradients(algorithm):
    queries, table, values, content = make_factors()

    def loss(table, q, v, c):
        return make_interaction(algorithm)(q[None], table, v[None], c[None]).square().sum()

    grad = torch.func.grad(loss, argnums=(0, 3))
    batched = torch.func.vmap(grad, (None, 0, 0, 0))(table, queries, values, content)
    separate = [grad(table, *factors) for factors in zip(queries, values, content, strict=True)]
    for gradient, per_example in zip(batched, zip(*separate, strict=True), strict=True):
        torch.testing.assert_close(gradient, torch.stack(per_example), rtol=1e-12, atol=1e-12)


def test_split_batch_uses_the_content_lambda_of_each_example(monkeypatch):
    inputs = make_factors(batch=5)
    batched = with_gradients(make_interaction("query_order"), inputs)
    monkeypatch.setitem(ALGORITHMS, "query_order", Spy("query_order", max_batch=2))
    assert_all_close(with_gradients(make_interaction("query_order"), inputs), batched)


def test_inputs_are_not_modified():
    inputs = make_factors()
    before = [x.clone() for x in inputs]
    with_gradients(make_interaction(), inputs)
    with torch.no_grad():
        make_interaction()(*inputs)
    assert all(torch.equal(*pair) for pair in zip(inputs, before, strict=True))


@algorithms
def test_compiles_fullgraph_with_the_same_gradients(algorithm):
    torch.compiler.reset()
    inputs = [x.requires_grad_() for x in make_factors()]
    function = make_interaction(algorithm, dilation=2)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    actual, expected = (torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in (compiled, function))
    assert_all_close(actual, expected, 1e-12)


def test_exports_with_the_content_term():
    class Interaction(torch.nn.Module):
        def forward(self, *x):
            return make_interaction()(*x)

    inputs = tuple(make_factors())
    exported = torch.export.export(Interaction(), inputs).module()
    torch.testing.assert_close(exported(*inputs), make_interaction()(*inputs), rtol=1e-12, atol=1e-12)
