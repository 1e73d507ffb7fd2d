"""Lambda layers on sequences, images and volumes, against the definition of the operation."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from all_pairs import all_pairs, in_turn
from lambdanets import LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding
from lambdanets.layers import DenseEmbedding
from lambdanets.ops import definition

LAYERS = {1: LambdaLayer1d, 2: LambdaLayer2d, 3: LambdaLayer3d}
POOL_2X2 = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)


def reference_output(layer, x, mask=None):
    """Return the output of the layer before pooling, computed from its parameters by `ops.definition`."""
    (b, _, *grid), h, k, u, v = x.shape, layer.heads, layer.query_depth, layer.intra_depth, layer.value_depth
    n = x[0, 0].numel()
    per_head = (h,) if layer.multi_head else ()
    queries = layer.query_norm(layer.query_projection(x)).reshape(b, h, k, n).transpose(2, 3)
    if layer.normalize_queries:
        queries = queries.softmax(dim=3)
    values = layer.value_norm(layer.value_projection(x)).reshape(b, *per_head, v, u, n).movedim(-1, -3)
    keys = embeddings = None
    if layer.key_projection is not None:
        keys = layer.key_projection(x).reshape(b, *per_head, k, u, n).movedim(-1, -3)
    if layer.relative_embeddings:
        embeddings = sum(relative_pairs(layer, embedding, grid) for embedding in layer.relative_embeddings)
    elif layer.embedding is not None:
        embeddings = layer.embedding(n, n) if u > 1 else layer.embedding(n, n)[..., None]
    allowed = torch.ones(b, n, n, dtype=torch.bool)
    if mask is not None:
        allowed = allowed & mask.flatten(1)[:, None]
    if layer.causal:
        allowed = allowed.tril()
    options = {"multi_head": layer.multi_head, "normalize_keys": layer.normalize_keys}
    if layer.content_by_slice:
        slices = torch.arange(n) // (n // grid[0])
        in_slice = allowed & (slices[:, None] == slices)
        output = definition.lambda_interaction(queries, keys, values, None, mask=in_slice, **options)
        if embeddings is not None:
            output = output + definition.lambda_interaction(queries, None, values, embeddings, mask=allowed, **options)
    else:
        output = definition.lambda_interaction(queries, keys, values, embeddings, mask=allowed, **options)
    if layer.position_bias is not None:
        bias = layer.position_bias if layer.multi_head else layer.position_bias.expand(h, k)
        output = output + torch.einsum("bhnk,hk->bhn", queries, bias).unsqueeze(3)
    return output.transpose(2, 3).reshape(b, layer.dim_out, *grid)


def relative_pairs(layer, embedding, grid):
    tables = embedding.table if layer.multi_head else embedding.table[None]
    tables = tables if layer.intra_depth > 1 else tables[..., None]
    pairs = [definition.relative_embeddings(table, grid, dilation=layer.dilation) for table in tables]
    return torch.stack(pairs) if layer.multi_head else pairs[0]


SIZES = {1: ((11,), (1,)), 2: ((5, 6), (1, 7)), 3: ((3, 4, 2), (2, 1, 3))}  # by dimensions
OPTIONS = {
    "dimensions": (2, 1, 3),
    "embedding": ("own", "global", "several", "dense", None),
    "content": (True, False, "slices"),
    "normalization": (
        {},
        {"normalize_keys": "l2", "batch_norm": False},
        {"normalize_keys": None, "normalize_queries": "softmax"},
    ),
    "intra_depth": (1, 2),
    "multi_head": (False, True),
    "causal": (False, True),
    "dilation": (1, 2),
    "position_bias": (False, True),
}


def is_valid(dimensions, embedding, content, _, u, multi_head, causal, dilation, bias):
    has_table = embedding not in (None, "dense") or dilation == 1
    return has_table and (content != "slices" or dimensions == 3) and (embedding or (content and not bias))


ROWS = [dict(zip(OPTIONS, row, strict=True)) for row in all_pairs(*OPTIONS.values(), valid=is_valid)]
CASES = {", ".join(map(str, row.values())): row for row in ROWS}
POOLS = {
    "stride 2": {"stride": 2},
    "stride 3": {"stride": 3},
    "2x2 pool": {"stride": 2, "pool": POOL_2X2},
    "pool that counts its padding": {"stride": 2, "pool": nn.AvgPool2d(3, 2, 1)},
    "pool with a divisor": {"stride": 2, "pool": nn.AvgPool2d(2, 2, ceil_mode=True, divisor_override=3)},
}
parametrize_cases = pytest.mark.parametrize("case", CASES)


def make_layer(dtype=torch.float64, dim=8, dimensions=2, **options):
    torch.manual_seed(0)
    layer = LAYERS[dimensions](dim, **({"query_depth": 4, "heads": 2, "scope": 5, "dtype": dtype} | options))
    if layer.position_bias is not None:
        torch.nn.init.normal_(layer.position_bias)  # zero-initialized by default
    return layer


def make_case(case, size=0, **changes):
    """Return a layer for a case, and the size of its maps."""
    options = CASES[case] | changes
    dimensions, embedding = options["dimensions"], options.pop("embedding")
    grid, depths = SIZES[dimensions][size], (4, options["intra_depth"])
    factory = {"heads": 2 if options["multi_head"] else None, "dtype": torch.float64}
    if embedding == "global":
        options |= {"scope": None, "grid": grid}
    elif embedding == "several":
        scopes = (1,) * (dimensions - 1) + (5,), (3,) + (1,) * (dimensions - 1)
        options["embedding"] = [RelativeEmbedding(scope, *depths, **factory) for scope in scopes]
    elif embedding == "dense":
        options["embedding"] = DenseEmbedding(math.prod(grid), math.prod(grid) + 1, *depths, **factory)
    return make_layer(position=embedding is not None, dim_out=12, **options.pop("normalization"), **options), grid


def random_maps(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@parametrize_cases
def test_equals_the_definition_at_any_size(case):
    for size in (0, 1):
        layer, grid = make_case(case, size)
        x = random_maps(2, 8, *grid)
        torch.testing.assert_close(layer(x), reference_output(layer, x), rtol=1e-12, atol=1e-12)


@parametrize_cases
def test_masked_examples_equal_the_definition(case):
    layer, grid = make_case(case)
    x, mask = random_maps(3, 8, *grid), torch.ones(3, *grid, dtype=torch.bool)
    mask[1, -1:], mask[2, ..., 1:] = False, False
    expected = reference_output(layer.eval(), x, mask).masked_fill(~mask.unsqueeze(1), 0)
    torch.testing.assert_close(layer(x, mask), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(x, mask[1:2]), layer(x, mask[1:2].expand_as(mask)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "training"), in_turn([*POOLS, *(name for name in CASES if "dense" not in name)], (True, False))
)
def test_outputs_at_valid_positions_are_independent_of_padding(case, training):
    layer, size = (make_layer(**POOLS[case]), (8, 7)) if case in POOLS else make_case(case)
    layer.train(training)
    valid = [side - 1 - side // 4 for side in size]
    unpadded, padded = random_maps(2, 8, *valid), torch.full((2, 8, *size), torch.nan, dtype=torch.float64)
    inside = tuple(slice(side) for side in valid)
    padded[(..., *inside)] = unpadded
    mask = torch.zeros(2, *size, dtype=torch.bool)
    mask[(slice(None), *inside)] = True
    masked_layer = copy.deepcopy(layer)
    expected, result = layer(unpadded), masked_layer(padded, mask)
    valid_outputs = (..., *(slice(side) for side in expected.shape[2:]))
    torch.testing.assert_close(result[valid_outputs], expected, rtol=1e-10, atol=1e-12)
    padding = result.clone()
    padding[valid_outputs] = 0
    assert not padding.any()
    for (name, buffer), masked_buffer in zip(layer.named_buffers(), masked_layer.buffers(), strict=True):
        torch.testing.assert_close(masked_buffer, buffer, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("case", "batch", "training", "masked", "last"),
    in_turn(["stride 2", *CASES], (1, 2), (False, True), (False, True), (False, True)),
)
def test_first_and_second_derivatives(case, batch, training, masked, last):
    layer, grid = (make_layer(stride=2), (3, 4)) if case in POOLS else make_case(case)
    layer.train(training)
    x = random_maps(batch, 8, *grid)
    if last and x.ndim > 3:
        x = x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    mask = torch.ones(batch, *grid, dtype=torch.bool) if masked else None
    if masked:
        mask[0, ..., -1], mask[-1, :1] = False, False
    names = [name for name, _ in layer.named_parameters()]

    def run(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, mask))

    assert gradcheck(run, (x.requires_grad_(), *layer.parameters()), fast_mode=True)
    assert gradgradcheck(lambda x: layer(x, mask), x, fast_mode=True)


@parametrize_cases
def test_runs_on_the_meta_device(case):
    layer, grid = make_case(case)
    x, mask = torch.empty(2, 8, *grid, dtype=torch.float64), torch.empty(2, *grid, dtype=torch.bool)
    layer = layer.eval().to("meta")
    assert layer(x.to("meta")).shape == layer(x.to("meta"), mask.to("meta")).shape == (2, 12, *grid)


@pytest.mark.parametrize("options", POOLS.values(), ids=POOLS.keys())
def test_pool_averages_after_the_layer_as_a_strided_convolution(options):
    layer, stride = make_layer(**options), options["stride"]
    pool = options.get("pool", nn.AvgPool2d(2 * stride - 1, stride, stride - 1, count_include_pad=False))
    for size in ((6, 8), (5, 7), (1, 2)):
        x = random_maps(2, 8, *size)
        output = layer(x)
        torch.testing.assert_close(output, pool(reference_output(layer, x)), rtol=1e-12, atol=1e-12)
        assert output.shape[2:] == nn.Conv2d(8, 8, 3, stride, 1, dtype=torch.float64)(x).shape[2:]


@pytest.mark.parametrize("size", [(7,), (3, 4, 5), (1, 1, 1), (3, 2, 5)], ids=str)
def test_strided_sequences_and_volumes_are_averages_without_padding(size):
    dimensions = len(size)
    layer, x = make_layer(dimensions=dimensions, scope=3, stride=3), random_maps(2, 8, *size)
    unpooled, result = reference_output(layer, x), layer(x)
    assert result.shape[2:] == tuple(-(-side // 3) for side in size)
    assert layer.pool(x.bfloat16()).dtype == torch.bfloat16
    corner = (slice(None), slice(None), *(slice(3),) * dimensions)
    torch.testing.assert_close(result[(..., *(0,) * dimensions)], unpooled[corner].flatten(2).mean(dim=2))


@pytest.mark.parametrize(
    ("grid", "memory_format", "stride"),
    [((5, 6), torch.channels_last, 1), ((3, 4, 5), torch.channels_last_3d, 1), ((4, 5, 6), torch.channels_last_3d, 2)],
)
def test_channels_last_is_preserved(grid, memory_format, stride):
    layer, x = make_layer(dimensions=len(grid), scope=3, stride=stride), random_maps(2, 8, *grid)
    result = layer(x.contiguous(memory_format=memory_format))
    mask = torch.arange(grid[0]).view(-1, *(1,) * (len(grid) - 1)).expand(2, *grid) > 0
    for output in (result, layer(x.contiguous(memory_format=memory_format), mask)):
        assert output.is_contiguous(memory_format=memory_format)
    assert layer(x.repeat_interleave(2, -1)[..., ::2]).is_contiguous()  # as of a convolution
    torch.testing.assert_close(result, layer(x))
    torch.testing.assert_close(layer.to(memory_format=memory_format)(x), result)  # also of the weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_layers_keep_their_dtype_and_stay_finite(dtype):
    layer = LambdaLayer2d(32, dtype=dtype)
    x = random_maps(2, 32, 13, 11, dtype=torch.float32).to(dtype)
    output = layer(x)
    output.float().square().mean().backward()
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_reset_parameters_keeps_a_shared_table():
    shared = RelativeEmbedding((5, 5), 4)
    before = shared.table.detach().clone()
    make_layer(torch.float32, embedding=shared).reset_parameters()
    assert torch.equal(shared.table, before)


def test_vmap_gives_per_sample_gradients():
    layer, x = make_layer().eval(), random_maps(3, 8, 4, 5)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x[None],)).square().sum()

    batched = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for i, name in itertools.product(range(3), parameters):
        torch.testing.assert_close(batched[name][i], torch.func.grad(loss)(parameters, x[i])[name])


REPLACED = {
    "table of another depth": lambda layer: setattr(layer.embedding, "table", nn.Parameter(torch.randn(7, 7, 8))),
    "table of a sequence": lambda layer: setattr(layer, "embedding", RelativeEmbedding((5,), 16)),
    "table on another device": lambda layer: layer.embedding.to_empty(device="meta"),
    "pruned keys": lambda layer: setattr(layer, "key_projection", nn.Conv2d(16, 4, 1, bias=False)),
}


@pytest.mark.parametrize(("name", "training"), in_turn(REPLACED, (True, False)))
def test_replaced_modules_that_do_not_fit_are_refused(name, training):
    layer = LambdaLayer2d(16, scope=7).train(training)
    REPLACED[name](layer)
    with pytest.raises(ValueError, match=r"table must|content must"):
        layer(torch.randn(2, 16, 12, 12))


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_norms_may_have_another_dtype(size, dtype):
    layer = LambdaLayer2d(16, scope=3).eval()
    x = torch.randn(2, 16, size, size)
    expected = layer(x)
    layer.to(dtype)
    other = torch.float32 if dtype != torch.float32 else torch.float64
    layer.query_norm.to(other)
    layer.value_norm.to(other)
    actual = layer(x.to(dtype)).float()
    assert (actual - expected).norm() <= (0.03 if dtype == torch.bfloat16 else 1e-5) * expected.norm()


OTHER = RelativeEmbedding((5, 5), 16)
INVALID_ARGUMENTS = [
    ({"dim_context": 5}, "dim_context must be None for layers on maps, got 5"),
    ({"dim_out": 10, "heads": 4}, "dim_out must be divisible by heads = 4, got 10"),
    ({"scope": None}, "grid must be a tuple of sides if scope is None, else None, got None"),
    ({"grid": (7, 7)}, r"grid must be a tuple of sides if scope is None, else None, got \(7, 7\) and scope=5"),
    ({"scope": None, "grid": 7}, "grid must be a tuple of sides if scope is None, else None, got 7"),
    ({"scope": 7.0}, r"scope must be a tuple of .* odd and positive sides, got \(7\.0, 7\.0\)"),
    ({"scope": (5, 7, 7)}, r"scope must have 2 side\(s\), got \(5, 7, 7\)"),
    ({"scope": None, "grid": (7,)}, r"grid must have 2 side\(s\), got \(7,\)"),
    ({"content": False, "position": False}, "content and position must not both be False"),
    ({"stride": 2, "causal": True}, "stride must be 1 and pool None if causal is True.*got stride=2"),
    ({"normalize_keys": "l1"}, r"normalize_keys must be one of \('softmax', 'l2', None\), got 'l1'"),
    ({"embedding": OTHER, "position": False}, "embedding must be None when position is False"),
    ({"embedding": DenseEmbedding(9, 9, 16, heads=4)}, r"embedding must have .*heads. = .16, 1, None., got .16, 1, 4."),
    ({"embedding": DenseEmbedding(9, 9, 16), "dilation": 2}, "dilation must be 1 unless .*, got 2"),
    ({"pool": nn.MaxPool2d(2)}, "pool must be an nn.AvgPool2d or None, got MaxPool2d"),
    ({"pool": POOL_2X2}, r"pool must map sides S to ceil\(S / stride\) for stride = 1"),
]


def test_scope_and_grid_may_be_lists():
    assert LambdaLayer2d(8, scope=[3, 5]).embedding.scope == (3, 5)
    assert LambdaLayer2d(8, scope=None, grid=[3, 5]).embedding.scope == (5, 9)


@pytest.mark.parametrize(("options", "message"), INVALID_ARGUMENTS)
def test_rejects_invalid_constructor_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        LambdaLayer2d(8, **({"scope": 5} | options))


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(8, 5, 5), None, r"x must be \(b, dim = 8, height, width\), got shape \(8, 5, 5\)"),
        (torch.zeros(1, 9, 5, 5), None, r"x must be \(b, dim = 8.*got shape \(1, 9, 5, 5\)"),
        (torch.zeros(1, 8, 5, 5), torch.ones(1, 5, 5), r"mask must be \(1, 5, 5\) and bool"),
        (torch.zeros(1, 8, 5, 5), torch.ones(1, 5, 4).bool(), r"mask must be \(1, 5, 5\) and bool"),
    ],
)
def test_rejects_invalid_inputs(x, mask, message):
    with pytest.raises(ValueError, match=message):
        make_layer(torch.float32)(x, mask)


@pytest.mark.parametrize("size", [4, 64])
def test_vmap_under_autocast(size):
    layer = LambdaLayer2d(16, scope=3).eval()
    x = torch.randn(2, 3, size, size, 16).movedim(-1, 2)  # vmap cannot say that this is channels_last
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = torch.func.vmap(layer)(x), torch.stack([layer(part) for part in x])
    assert (actual - expected).float().norm() <= 0.02 * expected.float().norm()
