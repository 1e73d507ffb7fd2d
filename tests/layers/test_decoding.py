"""Step-by-step decoding against forward passes over the whole sequence."""

from dataclasses import replace

import pytest
import torch

from lambdanets import (
    LambdaLayer,
    LambdaLayer1d,
    LambdaLayer2d,
    LambdaLayer3d,
    RelativeEmbedding,
    decode_step,
    start_decoding,
)
from lambdanets.adoption.trial import randomize
from lambdanets.layers import DenseEmbedding
from lambdanets.ops.decoding import ContentState

# layer class, options, grid
CASES = {
    "1d": (LambdaLayer1d, {}, (40,)),
    "1d, dilated": (LambdaLayer1d, {"dilation": 3}, (40,)),
    "1d, global scope": (LambdaLayer1d, {"scope": None, "grid": (40,)}, (40,)),
    "1d, l2 keys": (LambdaLayer1d, {"normalize_keys": "l2"}, (20,)),
    "1d, softmax queries": (LambdaLayer1d, {"normalize_keys": None, "normalize_queries": "softmax"}, (20,)),
    "1d, multi-head, intra-depth": (LambdaLayer1d, {"multi_head": True, "intra_depth": 2}, (20,)),
    "1d, content only": (LambdaLayer1d, {"position": False}, (20,)),
    "1d, position only": (LambdaLayer1d, {"content": False}, (20,)),
    "1d, position bias, multi-head": (LambdaLayer1d, {"position_bias": True, "multi_head": True}, (20,)),
    "2d": (LambdaLayer2d, {}, (5, 7)),
    "2d, non-square, dilated": (LambdaLayer2d, {"scope": (3, 7), "dilation": 2}, (5, 7)),
    "2d, scope larger than the map": (LambdaLayer2d, {"scope": 23}, (4, 3)),
    "3d": (LambdaLayer3d, {"scope": (3, 5, 3)}, (3, 4, 3)),
    "rows and columns": (
        LambdaLayer2d,
        {"embedding": [RelativeEmbedding(scope, 4, dtype=torch.float64) for scope in ((1, 5), (5, 1))]},
        (5, 7),
    ),
    "tokens": (LambdaLayer, {"scope": 9, "dilation": 2, "position_bias": True}, (20,)),
    "tokens, multi-head": (LambdaLayer, {"scope": 9, "multi_head": True}, (20,)),
}


def make_layer(layer_class, options, dtype=torch.float64):
    torch.manual_seed(0)
    options = {"query_depth": 4, "heads": 2, "scope": 5, "causal": True, "dtype": dtype} | options
    return randomize(layer_class(8, **options)).eval()


def decode(layer, x):
    """Apply the layer to one position after the other; (b, dim, *grid) to (b, dim_out, n)."""
    state, outputs = start_decoding(layer, len(x), tuple(x.shape[2:]) if x.ndim > 3 else None), []
    for position in x.flatten(2).unbind(2):
        output, state = decode_step(layer, position, state)
        outputs.append(output)
    return torch.stack(outputs, 2)


@pytest.mark.parametrize(("layer_class", "options", "grid"), CASES.values(), ids=CASES.keys())
def test_decoding_equals_a_full_forward_pass(layer_class, options, grid):
    layer = make_layer(layer_class, options)
    x = torch.randn(2, 8, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = layer(x.mT).mT if layer_class is LambdaLayer else layer(x).flatten(2)
    torch.testing.assert_close(decode(layer, x), expected, rtol=1e-12, atol=1e-12)


def test_decoding_state_is_bounded_by_the_scope():
    layer = make_layer(LambdaLayer1d, {"scope": 7})
    state = start_decoding(layer, 1)
    for _ in range(50):
        _, state = decode_step(layer, torch.ones(1, 8, dtype=torch.float64), state)
    assert state.values.shape[2] == 3  # half of the scope, without the next position
    assert state.content.sums.shape == (1, 1, 4, 1, 4)


@pytest.mark.parametrize("multi_head", [False, True])
def test_sequences_of_a_state_can_be_repeated_and_reordered(multi_head):
    layer, sequences = make_layer(LambdaLayer1d, {"multi_head": multi_head}), torch.randn(2, 8, 3, dtype=torch.float64)
    _, state = decode_step(layer, sequences[:, :, 0], start_decoding(layer, 2))
    chosen = [1, 0, 1]
    content = ContentState(*(x[chosen] for x in state.content))
    beams = replace(state, content=content, values=state.values[chosen])
    output, _ = decode_step(layer, sequences[chosen, :, 1], beams)
    torch.testing.assert_close(output, layer(sequences)[chosen, :, 1], rtol=1e-12, atol=1e-12)


def test_decoding_can_resume_twice_from_the_same_state():
    layer = make_layer(LambdaLayer1d, {"multi_head": True})
    layer.value_projection = torch.nn.Identity()  # like quantized projections, it has no parameters
    first, second = torch.randn(2, 1, 8, dtype=torch.float64)
    _, state = decode_step(layer, first, start_decoding(layer, 1))
    expected, _ = decode_step(layer, second, state)
    decode_step(layer, first, state)
    assert torch.equal(decode_step(layer, second, state)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_decoding_under_autocast_equals_a_full_forward_pass(dtype):
    torch.manual_seed(0)
    layer = LambdaLayer1d(16, causal=True).eval()
    x = 100 * torch.randn(1, 16, 60)
    with torch.autocast("cpu", dtype), torch.no_grad():
        expected, result = layer(x), decode(layer, x)
    assert result.dtype == expected.dtype
    assert result.isfinite().all()
    tolerance = 8 * torch.finfo(dtype).eps
    scale = expected.float().abs().max().item()
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * scale)


INVALID_ARGUMENTS = [
    (LambdaLayer1d, {"causal": False}, None, "layer must be causal for step-by-step decoding"),
    (LambdaLayer, {"scope": None}, None, "layer must have a relative embedding for decoding, got embedding=None"),
    (LambdaLayer1d, {"embedding": DenseEmbedding(9, 9, 4)}, None, r"relative .*, got embedding=DenseEmbedding\(9 x"),
    (LambdaLayer1d, {}, (5,), "grid must be None for a sequence"),
    (LambdaLayer2d, {}, None, "grid must be None for a sequence, else a tuple of 2 sides, got None"),
]


@pytest.mark.parametrize(("layer_class", "options", "grid", "message"), INVALID_ARGUMENTS)
def test_start_decoding_rejects_invalid_arguments(layer_class, options, grid, message):
    with pytest.raises(ValueError, match=message):
        start_decoding(make_layer(layer_class, options), 1, grid)


def test_decode_step_rejects_invalid_arguments():
    layer = make_layer(LambdaLayer2d, {})
    state = start_decoding(layer, 1, (1, 1))
    with pytest.raises(ValueError, match=r"x must be \(b, dim\) = \(1, 8\), got shape \(2, 8\)"):
        decode_step(layer, torch.zeros(2, 8, dtype=torch.float64), state)
    for decode in (lambda x: decode_step(layer, x, state), lambda x: start_decoding(layer, 1, (1, 1))):
        for norm in (layer.query_norm, layer.value_norm):
            norm.train()
            with pytest.raises(ValueError, match="layer must be in eval mode"):
                decode(torch.zeros(1, 8, dtype=torch.float64))
            norm.eval()
    _, state = decode_step(layer, torch.zeros(1, 8, dtype=torch.float64), state)
    with pytest.raises(ValueError, match=r"state must have positions left to decode, got a complete grid of \(1, 1\)"):
        decode_step(layer, torch.zeros(1, 8, dtype=torch.float64), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_decoding_equals_a_full_forward_pass(dtype):
    layer = make_layer(LambdaLayer1d, {}, dtype)
    x = torch.randn(2, 8, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    tolerance = 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(decode(layer, x), layer(x), rtol=tolerance, atol=10 * tolerance)
