import hypothesis.strategies as st
import pytest
import torch
from exactness import assert_error_within_budget
from hypothesis import given, settings
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from all_pairs import all_pairs
from lambdanets.ops import content_lambda, definition, lambda_interaction
from lambdanets.ops.content import NORMALIZATIONS

N, M, K, V, HEADS = 5, 7, 4, 3, 2

OPTIONS = {
    "normalize_keys": NORMALIZATIONS,
    "mask": (None, "n m", "b n m", "1 m", "b 1 m"),
    "embeddings": ("shared", "per example", None),
    "keys": (True, None),
    "u": (0, 2),
    "multi_head": (False, True),
    "causal": (False, True),
    "batch": (2, 1),
    "dtype": (torch.float32, torch.bfloat16, torch.float16),
}
ROWS = all_pairs(*OPTIONS.values(), valid=lambda *row: row[2] or row[3])  # embeddings or keys
VARIANTS = {", ".join(map(str, row)): dict(zip(OPTIONS, row, strict=True)) for row in ROWS}
variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


def make_problem(variant, batch=2, n=N, m=M, dtype=torch.float64):
    """Make the tensors and keyword arguments of a variant."""
    variant = {"keys": True, "embeddings": "shared", "u": 0, "mask": None} | variant
    generator = torch.Generator().manual_seed(variant["u"])
    multi_head, causal = variant.get("multi_head", False), variant.get("causal", False)
    m = n if causal else m
    extra = (variant["u"],) if variant["u"] else ()
    heads = (HEADS,) if multi_head else ()

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    queries, keys = random(batch, HEADS, n, K), 3 * random(batch, *heads, m, K, *extra)
    values = random(batch, *heads, m, V, *extra)
    lead = (batch,) if variant["embeddings"] == "per example" else ()
    embeddings = random(*lead, *heads, n, m, K, *extra)
    options = {name: variant[name] for name in ("multi_head", "causal", "normalize_keys") if name in variant}
    if variant["mask"] is not None:
        shape = [{"b": batch, "n": n, "m": m, "1": 1}[letter] for letter in variant["mask"].split()]
        options["mask"] = torch.rand(shape, generator=generator) > 0.4
        options["mask"][..., 0, :] = shape[-2] == 1  # the first query has an empty context
        options["mask"][..., :2] = False
    keys, embeddings = keys if variant["keys"] else None, embeddings if variant["embeddings"] else None
    return (queries, keys, values, embeddings), options


def reference_interaction(inputs, options):
    options = dict(options)
    if options.pop("causal", False):
        n = inputs[0].shape[2]
        options["mask"] = torch.ones(n, n, dtype=torch.bool).tril() & options.get("mask", torch.tensor(True))
    return definition.lambda_interaction(*inputs, **options)


def make_function(inputs, options):
    """Return the operation as a function of the inputs that are not None, and these inputs, which require gradients."""
    indices = [i for i, x in enumerate(inputs) if x is not None]

    def function(*tensors):
        arguments = [None] * 4
        for i, tensor in zip(indices, tensors, strict=True):
            arguments[i] = tensor
        return lambda_interaction(*arguments, **options)

    return function, [inputs[i].requires_grad_() for i in indices]


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@variants
def test_equals_the_definition_in_float64(variant):
    for n in (N, 37):
        inputs, options = make_problem(variant, n=n)
        expected = reference_interaction(inputs, options)
        result = lambda_interaction(*inputs, **options)
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12 * expected.abs().max().item())


@variants
def test_errors_are_at_most_twice_those_of_the_reference(variant):
    inputs, options = make_problem(variant, n=40, m=43, dtype=variant["dtype"])
    if options["causal"] and options["normalize_keys"] == "l2" and inputs[1] is not None:
        # If the context is one small key, the gradient of k / |k| is the difference of two terms of size 1 / |k|. The
        # reference subtracts them for each pair, prefix sums only after summation; so do not use small keys here.
        inputs[1].copy_(torch.where(inputs[1] < 0, inputs[1] - 1, inputs[1] + 1))
    weights = torch.randn(2, HEADS, 40, V, generator=torch.Generator().manual_seed(0))

    def run(function, inputs):
        inputs = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
        output = function(inputs, options)
        return output, *torch.autograd.grad(output, [x for x in inputs if x is not None], weights.to(output.dtype))

    exact_results = run(reference_interaction, [None if x is None else x.double() for x in inputs])
    references = run(reference_interaction, inputs)
    results = run(lambda inputs, options: lambda_interaction(*inputs, **options), inputs)
    assert results[0].dtype == variant["dtype"]
    for result, reference, exact in zip(results, references, exact_results, strict=True):
        assert_error_within_budget(result, reference, exact)


@variants
def test_gradcheck(variant):
    function, tensors = make_function(*make_problem(variant, batch=variant["batch"]))
    assert gradcheck(function, tensors, fast_mode=True)
    assert gradgradcheck(function, tensors, fast_mode=True)


@pytest.mark.parametrize("variant", [{"causal": True}, {"causal": True, "normalize_keys": "l2"}], ids=str)
def test_gradcheck_over_several_chunks_and_groups(variant):
    function, tensors = make_function(*make_problem(variant | {"embeddings": None}, batch=1, n=1100))
    assert gradcheck(function, tensors, fast_mode=True)


def test_equals_a_loop_over_positions():
    # Eqs. 1 and 2 as loops
    (queries, keys, values, embeddings), _ = make_problem({})
    result = lambda_interaction(queries, keys, values, embeddings)
    for b in range(2):
        normalized = keys[b].exp() / keys[b].exp().sum(dim=0)
        for n in range(N):
            lambda_n = sum(torch.outer(normalized[m] + embeddings[n, m], values[b, m]) for m in range(M))
            for h in range(2):
                torch.testing.assert_close(result[b, h, n], lambda_n.T @ queries[b, h, n], rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 70),
    scale=st.sampled_from([1.0, 1e3, 1e6]),
    normalize_keys=st.sampled_from(NORMALIZATIONS),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
)
def test_causal_outputs_do_not_depend_on_the_future_bit_for_bit(seed, n, scale, normalize_keys, dtype):
    inputs, _ = make_problem({"causal": True}, n=n, dtype=dtype)
    last = seed % (n - 1)
    changed = [x.clone() for x in inputs]
    noise = torch.Generator().manual_seed(seed)
    for tensor, axis in ((changed[0], 2), (changed[1], 1), (changed[2], 1)):
        future = tensor.narrow(axis, last + 1, n - last - 1)
        future.copy_(scale * torch.randn(future.shape, generator=noise).clamp(-0.06, 0.06))
    expected, actual = (
        lambda_interaction(*x, causal=True, normalize_keys=normalize_keys)[:, :, : last + 1] for x in (inputs, changed)
    )
    assert torch.equal(actual, expected)


def test_causal_content_is_accurate_for_keys_of_very_different_scale():
    # Normalizing with the maximum over all m would give 0 / 0 in the first half.
    (queries, keys, values, _), _ = make_problem({"causal": True}, n=64, dtype=torch.float32)
    keys = keys + torch.linspace(-2000, 2000, 64)[None, :, None]
    result = lambda_interaction(queries, keys, values, None, causal=True)
    exact = reference_interaction([queries.double(), keys.double(), values.double(), None], {"causal": True})
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


def test_causal_content_allocates_no_tensor_of_all_pairs():
    n = 1 << 14
    queries, keys, values = torch.randn(1, 1, n, 2), torch.randn(1, n, 2), torch.randn(1, n, 2)
    with LargestTensor() as largest:
        result = lambda_interaction(queries, keys, values, None, causal=True)
    assert largest.elements < n * 100  # a tensor of all pairs has n * 16384
    last = lambda_interaction(queries[:, :, -1:], keys, values, None)
    torch.testing.assert_close(result[:, :, -1:], last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("normalize_keys", "embeddings", "shape", "causal"),
    all_pairs(NORMALIZATIONS, ["shared", "per example"], [(N,), (2, N), (2, 1)], [False, True]),
)
def test_positions_masked_for_all_queries_have_no_effect(shape, embeddings, normalize_keys, causal):
    inputs, options = make_problem({"embeddings": embeddings, "causal": causal})
    mask = torch.rand(*shape, inputs[1].shape[1], generator=torch.Generator().manual_seed(0)) > 0.3
    mask[..., 2] = False
    if causal and shape[-1] == N:
        mask[..., :2, 2] = True  # for queries before it
    results = []
    for content in (0.0, torch.nan):
        queries, keys, values, e = (x.clone() for x in inputs)
        keys[:, 2], values[:, 2] = content, content
        tensors = [x.requires_grad_() for x in (queries, keys, values, e)]
        output = lambda_interaction(*tensors, mask=mask, normalize_keys=normalize_keys, **options)
        results.append((output, *torch.autograd.grad(output.sum(), tensors)))
    assert all(torch.equal(finite, nan) for finite, nan in zip(*results, strict=True))


@pytest.mark.parametrize("normalize_keys", NORMALIZATIONS)
@pytest.mark.parametrize("shape", [(N, M), (2, 1, M)], ids=str)
def test_empty_context_gives_zero_and_finite_gradients(normalize_keys, shape):
    inputs, _ = make_problem({})
    inputs = [x.requires_grad_() for x in inputs]
    output = lambda_interaction(*inputs, mask=torch.zeros(shape, dtype=torch.bool), normalize_keys=normalize_keys)
    assert torch.equal(output, torch.zeros_like(output))
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), inputs))


def test_content_lambda_is_the_weighted_sum_of_values():
    keys = torch.zeros(1, M, K, dtype=torch.float64)  # a softmax of equal keys is a mean
    values = torch.randn(1, M, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(content_lambda(keys, values), values.mean(dim=1, keepdim=True).expand(1, K, V))
    ones = torch.ones(1, M, K, dtype=torch.float64)
    torch.testing.assert_close(content_lambda(ones, values, normalize_keys=None)[0, 0], values[0].sum(dim=0))
    torch.testing.assert_close(content_lambda(ones, values, normalize_keys="l2")[0, 0], values[0].sum(dim=0) / M**0.5)


def test_content_lambda_ignores_masked_positions():
    (_, keys, values, _), _ = make_problem({})
    mask = torch.tensor([True] * 4 + [False] * 3)
    expected = content_lambda(keys[:, :4], values[:, :4])
    for shape in ((M,), (1, M), (2, M)):
        torch.testing.assert_close(content_lambda(keys, values, mask=mask.expand(shape)), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_large_keys_do_not_overflow_in_float16(causal):
    keys = torch.full((1, M, K), 60000.0, dtype=torch.float16)
    values = torch.ones(1, M, V, dtype=torch.float16)
    queries = torch.ones(1, 1, M, K, dtype=torch.float16)
    result = lambda_interaction(queries, keys, values, None, causal=causal)
    assert torch.equal(result, torch.full((1, 1, M, V), K, dtype=torch.float16))


ZEROS, ONES = torch.zeros, torch.ones
INVALID_ARGUMENTS = [
    ({"queries": ZEROS(2, N, K)}, r"queries must be \(b, h, n, k\)"),
    ({"keys": ZEROS(2, M, 9)}, rf"keys must be \(b, m, k\) with b = 2, k = {K}, m = {M}, got shape \(2, 7, 9\)"),
    ({"keys": None, "embeddings": None}, "keys and embeddings must not both be None"),
    ({"values": ZEROS(1, M, V)}, r"values must be \(b, m, v\) or \(b, m, v, u\) with b = 2, got shape"),
    ({"values": ZEROS(2, 2, M, V), "multi_head": True}, r"keys must be \(b, h, m, k\) with"),
    ({"embeddings": ZEROS(M, N, K)}, r"embeddings must be \(n, m, k\) or \(b, n, m, k\) with"),
    ({"mask": ONES(N, M)}, "mask must be bool.*got torch.float32"),
    ({"mask": ONES(M, N).bool()}, r"mask must be \(n, m\) or \(1, m\) or .* with b = 2, n = 5, m = 7, got shape"),
    ({"causal": True}, "context must have 5 positions, like queries, if causal is True; got 7"),
]


@pytest.mark.parametrize(("changes", "message"), INVALID_ARGUMENTS)
def test_rejects_invalid_arguments(changes, message):
    shapes = {"queries": (2, 2, N, K), "keys": (2, M, K), "values": (2, M, V), "embeddings": (N, M, K)}
    with pytest.raises(ValueError, match=message):
        lambda_interaction(**({name: ZEROS(shape) for name, shape in shapes.items()} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": ZEROS(2, M + 1, V)}, r"values must be \(b, m, v\) with b = 2, m = 7"),
        ({"keys": ZEROS(2, M, K, 2), "values": ZEROS(2, M, V, 3)}, r"values must be \(b, m, v, u\) with .*, u = 2"),
        ({"normalize_keys": "max"}, "normalize_keys must be.*got 'max'"),
        ({"mask": ONES(M)}, "mask must be bool, got torch.float32"),
    ],
)
def test_content_lambda_rejects_invalid_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        content_lambda(**({"keys": ZEROS(2, M, K), "values": ZEROS(2, M, V)} | changes))
