import pytest
import torch
from exactness import assert_as_exact_as_plain
from torch.autograd import gradcheck

from lambdanets.ops import content_lambda, definition, lambda_interaction

N, M, K, V = 5, 7, 4, 3

# u, embeddings per example, content, position
VARIANTS = {
    "content and position": (0, False, True, True),
    "content only": (0, False, True, False),
    "position only": (0, False, False, True),
    "embeddings per example": (0, True, True, True),
    "intra-depth": (2, False, True, True),
    "intra-depth, per example": (3, True, True, True),
}
variants = pytest.mark.parametrize(("u", "per_example", "content", "position"), VARIANTS.values(), ids=VARIANTS.keys())


def make_inputs(u, per_example, content, position, batch=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(u)
    extra = (u,) if u else ()

    def random(*shape):
        return torch.randn(*shape, *extra, generator=generator, dtype=torch.float64).to(dtype)

    queries = torch.randn(batch, 2, N, K, generator=generator, dtype=torch.float64).to(dtype)
    keys = random(batch, M, K) if content else None
    values = random(batch, M, V)
    lead = (batch,) if per_example else ()
    embeddings = random(*lead, N, M, K) if position else None
    return queries, keys, values, embeddings


@variants
def test_equals_the_definition_in_float64(u, per_example, content, position):
    inputs = make_inputs(u, per_example, content, position)
    expected = definition.lambda_interaction(*inputs)
    torch.testing.assert_close(lambda_interaction(*inputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@variants
def test_error_is_at_most_twice_that_of_the_plain_formula(u, per_example, content, position, dtype):
    low = make_inputs(u, per_example, content, position, dtype=dtype)
    exact = definition.lambda_interaction(*(None if x is None else x.double() for x in low))
    result = lambda_interaction(*low)
    assert result.dtype == dtype
    assert_as_exact_as_plain(result, definition.lambda_interaction(*low), exact)


@pytest.mark.parametrize("batch", [1, 2])
@variants
def test_gradcheck(u, per_example, content, position, batch):
    inputs = make_inputs(u, per_example, content, position, batch=batch)
    given = [x.requires_grad_() for x in inputs if x is not None]
    places = [i for i, x in enumerate(inputs) if x is not None]

    def function(*tensors):
        arguments = [None] * 4
        for place, tensor in zip(places, tensors, strict=True):
            arguments[place] = tensor
        return lambda_interaction(*arguments)

    assert gradcheck(function, given, fast_mode=True)


def test_a_loop_over_positions_gives_the_same():
    # Eqs. 1 and 2 once more, with no einsum at all
    queries, keys, values, embeddings = make_inputs(0, False, True, True)
    result = lambda_interaction(queries, keys, values, embeddings)
    for b in range(2):
        normalized = keys[b].exp() / keys[b].exp().sum(dim=0)
        for n in range(N):
            lambda_n = sum(torch.outer(normalized[m] + embeddings[n, m], values[b, m]) for m in range(M))
            for h in range(2):
                torch.testing.assert_close(result[b, h, n], lambda_n.T @ queries[b, h, n], rtol=1e-12, atol=1e-12)


def test_content_does_not_depend_on_the_order_of_the_context():
    queries, keys, values, _ = make_inputs(0, False, True, False)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(1))
    shuffled = lambda_interaction(queries, keys[:, order], values[:, order], None)
    torch.testing.assert_close(shuffled, lambda_interaction(queries, keys, values, None), rtol=1e-12, atol=1e-12)


def test_content_lambda_is_the_weighted_sum_of_values():
    keys = torch.zeros(1, M, K, dtype=torch.float64)  # a softmax of equal keys is a mean
    values = torch.randn(1, M, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(content_lambda(keys, values), values.mean(dim=1, keepdim=True).expand(1, K, V))


def test_large_keys_do_not_overflow_in_float16():
    keys = torch.full((1, M, K), 60000.0, dtype=torch.float16)
    values = torch.ones(1, M, V, dtype=torch.float16)
    assert torch.equal(content_lambda(keys, values), torch.ones(1, K, V, dtype=torch.float16))


WRONG = {
    "queries": ((2, N, K), (2, M, K), (2, M, V), (N, M, K), r"queries must be \(b, h, n, k\)"),
    "keys": ((2, 1, N, K), (2, M, 9), (2, M, V), (N, M, K), rf"keys must be \(b, m, k\) = \(2, {M}, {K}\)"),
    "values": ((2, 1, N, K), (2, M, K), (2, M), (N, M, K), r"values must be \(b, m, v\)"),
    "batch": ((2, 1, N, K), (2, M, K), (1, M, V), (N, M, K), "values must have the batch of queries, 2"),
    "embeddings": (
        (2, 1, N, K),
        (2, M, K),
        (2, M, V),
        (M, N, K),
        rf"embeddings must be \(n, m, k\) = \({N}, {M}, {K}\)",
    ),
}


@pytest.mark.parametrize(("queries", "keys", "values", "embeddings", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_is_named(queries, keys, values, embeddings, message):
    with pytest.raises(ValueError, match=message):
        lambda_interaction(*(torch.zeros(shape) for shape in (queries, keys, values, embeddings)))


def test_neither_keys_nor_embeddings_is_refused():
    with pytest.raises(ValueError, match="keys and embeddings are both None"):
        lambda_interaction(torch.zeros(1, 1, N, K), None, torch.zeros(1, M, V), None)


def test_what_is_not_served_yet_says_so():
    inputs = make_inputs(0, False, True, True)
    with pytest.raises(NotImplementedError, match="mask"):
        lambda_interaction(*inputs, mask=torch.ones(N, M, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="multi_head"):
        lambda_interaction(*inputs, multi_head=True)


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ((2, M), (2, M, V), "keys and values must be"),
        ((2, M, K), (2, M, V, 1), "keys and values must be"),
        ((2, M, K), (2, M + 1, V), "keys and values must be"),
        ((2, M, K, 2), (2, M, V, 3), "values must have the u of keys, 2"),
    ],
)
def test_content_lambda_names_what_does_not_fit(keys, values, message):
    with pytest.raises(ValueError, match=message):
        content_lambda(torch.zeros(keys), torch.zeros(values))
