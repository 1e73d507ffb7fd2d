"""Layers under torch.compile(fullgraph=True) and torch.export, with dynamic sizes."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from lambdanets import LambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding
from lambdanets.layers import DenseEmbedding

NORMALIZATIONS = {"normalize_keys": "l2", "normalize_queries": "softmax"}
POOL = {"stride": 2, "pool": nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)}
# layer class, options
LAYERS = {
    "1d, several tables": (LambdaLayer1d, {"embedding": [RelativeEmbedding((side,), 4) for side in (5, 9)]}),
    "2d stride, intra-depth": (LambdaLayer2d, {"stride": 2, "dilation": 2, "intra_depth": 2, **NORMALIZATIONS}),
    "2d multi-head, another pool": (LambdaLayer2d, {"multi_head": True, "position_bias": True, **POOL}),
    "3d": (LambdaLayer3d, {"scope": 3}),
    "tokens": (LambdaLayer, {"embedding": RelativeEmbedding((5,), 4)}),
    "tokens, dense embeddings": (LambdaLayer, {"embedding": DenseEmbedding(40, 40, 4)}),
}
SIZES = {
    LambdaLayer: ((9,), (12,), (30,)),
    LambdaLayer1d: ((9,), (30,), (257,)),
    LambdaLayer2d: ((8, 8), (9, 12), (16, 20)),
    LambdaLayer3d: ((3, 4, 5), (4, 6, 7), (5, 7, 8)),
}


def make_layer(layer_class, options):
    torch.manual_seed(0)
    options = {"query_depth": 4, "heads": 2, "scope": 5} | options
    if layer_class is LambdaLayer:
        del options["scope"]
    layer = layer_class(8, **options)
    if layer.position_bias is not None:
        nn.init.normal_(layer.position_bias)
    return layer


def random_input(layer_class, batch, size):
    shape = (batch, *size, 8) if layer_class is LambdaLayer else (batch, 8, *size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(batch))


@pytest.mark.parametrize(("layer_class", "options"), LAYERS.values(), ids=LAYERS.keys())
def test_compiles_fullgraph_at_most_twice_for_all_sizes(layer_class, options):
    torch.compiler.reset()
    layer, counter = make_layer(layer_class, options), CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    # batches start at 16, because PyTorch's convolutions recompile for smaller ones
    for batch, size in enumerate(SIZES[layer_class], 16):
        x = random_input(layer_class, batch, size).requires_grad_()
        actual, expected = compiled(x), layer(x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        inputs = (x, *layer.parameters())
        gradients = (torch.autograd.grad(y.square().mean(), inputs) for y in (actual, expected))
        for gradient, reference in zip(*gradients, strict=True):
            torch.testing.assert_close(gradient, reference, rtol=1e-3, atol=1e-3 * reference.abs().max().item())
    assert counter.frame_count <= 2


def test_compiles_with_a_padding_mask_in_eval_mode():
    torch.compiler.reset()
    layer, counter = make_layer(LambdaLayer2d, {"stride": 2}).eval(), CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for batch, size in enumerate(SIZES[LambdaLayer2d], 16):
        x, mask = random_input(LambdaLayer2d, batch, size), torch.ones(batch, *size, dtype=torch.bool)
        mask[:, 5:], mask[0, :, 6:] = False, False
        torch.testing.assert_close(compiled(x, mask), layer(x, mask), rtol=1e-4, atol=1e-4)
    assert counter.frame_count <= 2


def test_compiles_under_autocast_and_channels_last():
    torch.compiler.reset()
    layer = make_layer(LambdaLayer2d, {})
    x = random_input(LambdaLayer2d, 2, (6, 7)).contiguous(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x)
    torch.testing.assert_close(*outputs)
    gradients = [torch.autograd.grad(output.float().square().sum(), x)[0] for output in outputs]
    assert (gradients[0] - gradients[1]).norm() <= 0.02 * gradients[1].norm()


CROSS = {"embedding": [RelativeEmbedding((1, 5), 4), RelativeEmbedding((5, 1), 4)]}


@pytest.mark.parametrize("options", [CROSS, {"causal": True}, {"position_bias": True, **POOL}], ids=", ".join)
def test_exported_layer_accepts_other_batch_and_image_sizes(options):
    layer = make_layer(LambdaLayer2d, options).eval()
    x = random_input(LambdaLayer2d, 17, (9, 12))
    exported = torch.export.export(layer, (x,), dynamic_shapes=(dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO),))
    for batch, size in ((17, (9, 12)), (33, (16, 14))):
        x = random_input(LambdaLayer2d, batch, size)
        torch.testing.assert_close(exported.module()(x), layer(x), rtol=1e-4, atol=1e-4)
