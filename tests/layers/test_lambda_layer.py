import copy

import pytest
import torch
from torch.autograd import gradcheck

from lambdanets import LambdaLayer2d
from lambdanets.ops import definition


def by_definition(layer, x):
    """The layer's output from its parameters and the specification alone, before any pooling."""
    b, _, height, width = x.shape
    n, h, k, u = height * width, layer.heads, layer.query_depth, layer.intra_depth
    queries = layer.query_norm(layer.query_projection(x)).reshape(b, h, k, n).transpose(2, 3)
    values = layer.value_norm(layer.value_projection(x)).reshape(b, layer.value_depth, u, n).permute(0, 3, 1, 2)
    output = 0
    if layer.key_projection is not None:
        keys = layer.key_projection(x).reshape(b, k, u, n).permute(0, 3, 1, 2)
        output = output + definition.lambda_interaction(queries, keys, values, None)
    if layer.embedding is not None:
        table = layer.embedding.table if u > 1 else layer.embedding.table.unsqueeze(-1)
        output = output + definition.position_interaction(
            queries, table, values, (height, width), dilation=layer.dilation
        )
    return output.transpose(2, 3).reshape(b, layer.dim_out, height, width)


OPTIONS = {
    "default": {},
    "wider out": {"dim_out": 12, "heads": 3},
    "intra-depth": {"intra_depth": 2},
    "content only": {"position": False},
    "position only": {"content": False},
    "no batch norm": {"batch_norm": False},
    "non-square scope": {"scope": (3, 5)},
    "global": {"scope": None, "grid": (5, 6)},
    "dilated": {"dilation": 2},
    "convolution": {"algorithm": "convolution"},
}
options = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS.keys())


def make_layer(dtype=torch.float64, dim=8, **option):
    torch.manual_seed(0)
    return LambdaLayer2d(dim, **({"query_depth": 4, "heads": 2, "scope": 5, "dtype": dtype} | option))


def image(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@options
@pytest.mark.parametrize("size", [(5, 6), (4, 4), (1, 7)], ids=str)
def test_equals_the_definition_at_any_size(size, option):
    layer, x = make_layer(**option), image(2, 8, *size)
    torch.testing.assert_close(layer(x), by_definition(layer, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("option", [{}, {"intra_depth": 2}, {"stride": 2}], ids=["plain", "intra-depth", "stride"])
def test_gradcheck(option, batch, training, memory_format):
    layer = make_layer(dim=4, query_depth=3, **option).train(training)
    x = image(batch, 4, 3, 4).contiguous(memory_format=memory_format).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def run(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (x, *layer.parameters()), fast_mode=True)


@pytest.mark.parametrize(
    ("size", "stride", "expected"), [((7, 9), 2, (4, 5)), ((8, 6), 2, (4, 3)), ((7, 7), 3, (3, 3))]
)
def test_stride_gives_the_size_of_the_convolution_it_replaces(size, stride, expected):
    layer = make_layer(stride=stride)
    x = image(2, 8, *size)
    convolution = torch.nn.Conv2d(8, 8, 3, stride=stride, padding=1, dtype=torch.float64)
    assert layer(x).shape[2:] == convolution(x).shape[2:] == expected


def test_stride_is_an_average_over_the_positions_that_exist():
    layer, x = make_layer(stride=2), image(2, 8, 5, 5)
    before = by_definition(layer, x)
    torch.testing.assert_close(layer(x)[:, :, 0, 0], before[:, :, :2, :2].mean(dim=(2, 3)))
    torch.testing.assert_close(layer(x)[:, :, 1, 1], before[:, :, 1:4, 1:4].mean(dim=(2, 3)))


def test_channels_last_goes_in_and_comes_out():
    layer, x = make_layer(), image(2, 8, 5, 6)
    result = layer(x.contiguous(memory_format=torch.channels_last))
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, layer(x))
    assert layer.to(memory_format=torch.channels_last)(x).shape == result.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_layers_keep_their_dtype_and_stay_finite(dtype):
    layer = LambdaLayer2d(32, dtype=dtype)
    x = image(2, 32, 13, 11, dtype=torch.float32).to(dtype)
    output = layer(x)
    output.float().square().mean().backward()
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_autocast_is_finite_forward_and_backward(scale, dtype):
    torch.manual_seed(0)
    layer = LambdaLayer2d(16)
    with torch.autocast("cpu", dtype):
        output = layer(scale * image(2, 16, 33, 30, dtype=torch.float32))
    output.float().mean().backward()
    assert output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("option", [{}, {"stride": 2}, {"intra_depth": 2}], ids=["plain", "stride", "intra-depth"])
def test_compiles_whole_and_serves_other_sizes(option):
    torch.compiler.reset()
    layer = make_layer(torch.float32, **option)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for size in ((6, 6), (5, 7), (12, 9)):
        x = image(2, 8, *size, dtype=torch.float32).requires_grad_()
        (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
        (result,) = torch.autograd.grad(compiled(x).square().sum(), x)
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


def test_compiles_under_autocast_and_channels_last():
    torch.compiler.reset()
    layer = make_layer(torch.float32).eval()
    x = image(2, 8, 6, 7, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


def test_parameters_start_as_the_paper_says():
    torch.manual_seed(0)
    layer = LambdaLayer2d(256)
    spread = {name: parameter.std().item() for name, parameter in layer.named_parameters() if parameter.ndim > 1}
    assert spread["query_projection.weight"] == pytest.approx((16 * 256) ** -0.5, rel=0.05)
    assert spread["key_projection.weight"] == pytest.approx(256**-0.5, rel=0.05)
    assert spread["value_projection.weight"] == pytest.approx(256**-0.5, rel=0.05)
    assert spread["embedding.table"] == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("u", [1, 4])
def test_parameters_are_as_many_as_the_formula_says(u):
    d, h, k, r = 64, 4, 16, 7
    v = d // h
    layer = LambdaLayer2d(d, heads=h, query_depth=k, intra_depth=u, scope=r)
    expected = d * h * k + d * k * u + d * v * u + r * r * k * u + 2 * h * k + 2 * v * u
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


def test_a_copy_and_a_state_dict_give_the_same_output():
    layer, x = make_layer().eval(), image(2, 8, 5, 6)
    other = make_layer(scope=5)
    other.reset_parameters()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_runs_on_the_meta_device():
    layer = make_layer(torch.float32, device="meta")
    assert layer(torch.empty(2, 8, 5, 6, device="meta")).shape == (2, 8, 5, 6)


WRONG = {
    "dim_out not divisible by heads": ({"dim_out": 10, "heads": 4}, "dim_out must be divisible by heads = 4, got 10"),
    "an even scope": ({"scope": 4}, "scope must be odd and positive.*got 4"),
    "global without a grid": ({"scope": None}, "grid must be given"),
    "a grid beside a scope": ({"grid": (7, 7)}, "grid must be None unless scope is None"),
    "nothing to compute": ({"content": False, "position": False}, "content and position are both False"),
    "no heads": ({"heads": 0}, "heads must be a whole number of at least 1, got 0"),
    "no stride": ({"stride": 0}, "stride must be a whole number of at least 1, got 0"),
    "a pair for a stride": ({"stride": (2, 2)}, r"stride must be a whole number.*got \(2, 2\)"),
    "a text for a scope": ({"scope": "5"}, "scope must be odd and positive.*got '5'"),
    "a float for a scope": ({"scope": 5.0}, "scope must be odd and positive.*got 5.0"),
    "one side for a grid": ({"scope": None, "grid": 7}, "grid must be two positive sides.*got 7"),
    "a text for a flag": ({"content": "False"}, "content must be True or False, got 'False'"),
    "an unknown algorithm": ({"algorithm": "fastest"}, "algorithm must be one of"),
}


@pytest.mark.parametrize(("option", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_named_with_what_was_expected_and_what_came(option, message):
    with pytest.raises(ValueError, match=message):
        LambdaLayer2d(8, **({"scope": 5} | option))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(8, 5, 5), r"x must be \(b, dim = 8, height, width\), got shape \(8, 5, 5\)"),
        (torch.zeros(1, 9, 5, 5), r"x must be \(b, dim = 8.*got shape \(1, 9, 5, 5\)"),
        (
            torch.zeros(1, 8, 5, 5, dtype=torch.float64),
            "x must have the dtype of the layer's parameters, torch.float32",
        ),
        (torch.zeros(1, 8, 5, 5, dtype=torch.int64), "x must have the dtype.*got torch.int64"),
    ],
    ids=["rank", "channels", "dtype", "integers"],
)
def test_wrong_inputs_are_named(x, message):
    with pytest.raises(ValueError, match=message):
        make_layer(torch.float32)(x)


@pytest.mark.parametrize(
    "option",
    [
        {"normalize_keys": None},
        {"normalize_queries": "softmax"},
        {"embedding": torch.nn.Identity()},
        {"multi_head": True},
        {"causal": True},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_is_not_served_yet_says_so(option):
    with pytest.raises(NotImplementedError, match=next(iter(option))):
        LambdaLayer2d(8, **option)
