"""Layers under torch.fx and torch.jit.trace, and ONNX files from a trace."""

import pytest
import torch
from torch import fx, nn
from torchvision.models.feature_extraction import create_feature_extractor

from all_pairs import in_turn
from lambdanets import LambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d
from lambdanets.layers import DenseEmbedding
from lambdanets_lab.mixers import LocalAttention

# PyTorch warns at every call that tracing is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")

MAPS, SEQUENCE, VOLUME, TOKENS = (2, 8, 6, 5), (2, 8, 6), (2, 8, 3, 4, 2), (2, 6, 8)
LAYERS = {
    "default": (LambdaLayer2d, {}, MAPS),
    "default, one example": (LambdaLayer2d, {"scope": 3}, (1, *MAPS[1:])),
    "strided": (LambdaLayer2d, {"stride": 2, "intra_depth": 2}, MAPS),
    "dilated": (LambdaLayer2d, {"scope": 3, "dilation": 2, "position_bias": True}, MAPS),
    "multi-head": (LambdaLayer2d, {"multi_head": True, "normalize_keys": "l2", "normalize_queries": "softmax"}, MAPS),
    "causal": (LambdaLayer2d, {"causal": True}, MAPS),
    "content only": (LambdaLayer2d, {"position": False}, MAPS),
    "global scope": (LambdaLayer2d, {"scope": None, "grid": (6, 5), "content": False, "batch_norm": False}, MAPS),
    "pool that counts its padding": (LambdaLayer2d, {"stride": 2, "pool": nn.AvgPool2d(3, 2, 1)}, MAPS),
    "large maps": (LambdaLayer2d, {"scope": 9}, (1, 8, 16, 20)),
    "sequence": (LambdaLayer1d, {"scope": 5}, SEQUENCE),
    "volume": (LambdaLayer3d, {"scope": 3, "stride": 2}, VOLUME),
    "tokens": (LambdaLayer, {"scope": 5}, TOKENS),
    "dense embeddings": (LambdaLayer, {"embedding": DenseEmbedding(6, 6, 16)}, TOKENS),
}


def make_layer(layer, options, shape):
    torch.manual_seed(0)
    module = layer(shape[-1 if layer is LambdaLayer else 1], **options)
    if "position_bias" in options:
        nn.init.normal_(module.position_bias)
    return module, torch.randn(shape, requires_grad=True)


def output_and_gradients(function, x, parameters):
    output = function(x)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return output, torch.autograd.grad((output * weights).sum(), [x, *parameters])


# in evaluation, layers fold their batch norms
@pytest.mark.parametrize(("name", "training"), in_turn(LAYERS, (True, False)))
def test_trace_has_the_outputs_and_gradients_of_the_layer(name, training):
    layer, x = make_layer(*LAYERS[name])
    layer.train(training)
    traced = torch.jit.trace(layer, x)
    parameters = list(layer.parameters())
    expected, expected_gradients = output_and_gradients(layer, x, parameters)
    output, actual_gradients = output_and_gradients(traced, x, parameters)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    for actual, reference in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore")  # of the exporter, which PyTorch deprecates
@pytest.mark.parametrize("name", ["strided", "causal", "tokens", "large maps", "volume"])
def test_onnx_exported_from_a_trace_has_the_outputs_of_the_layer(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, x = make_layer(*LAYERS[name])
    x = x.detach()
    torch.onnx.export(layer.eval(), (x,), tmp_path / "layer.onnx", dynamo=False)
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx", providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(output), layer(x), rtol=1e-4, atol=1e-4)


def test_saved_trace_accepts_any_batch_size(tmp_path):
    layer, x = make_layer(LambdaLayer2d, {"stride": 2}, MAPS)
    layer.eval()
    torch.jit.trace(layer, x).save(tmp_path / "layer.pt")
    loaded = torch.jit.load(tmp_path / "layer.pt")
    larger = torch.randn(5, *MAPS[1:])
    torch.testing.assert_close(loaded(larger), layer(larger))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("default", [(2, 8, 5, 6), (2, 8, 12, 10), (2, 8, 6, 1), (2, 8, 1, 1)]),
        ("tokens", [(2, 1, 8), (2, 12, 8)]),
        ("dense embeddings", [(2, 1, 8), (2, 5, 8)]),
    ],
)
def test_trace_rejects_other_sizes(name, shapes):
    layer, x = make_layer(*LAYERS[name])
    traced = torch.jit.trace(layer.eval(), x)
    for shape in shapes:
        with pytest.raises(RuntimeError, match="expects split_sizes to sum exactly to"):
            traced(torch.randn(shape))


@pytest.mark.parametrize(
    ("layer", "options", "shape"), [LAYERS["default"], LAYERS["tokens"], (LocalAttention, {}, (2, 32, 6, 5))]
)
def test_torch_fx_sees_a_layer_as_one_node(layer, options, shape):
    layer, x = make_layer(layer, options, shape)
    network = nn.Sequential(nn.Tanh(), nn.Sequential(layer, nn.Tanh()))
    graph = fx.symbolic_trace(network)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1.0", "1.1"]
    assert torch.equal(create_feature_extractor(network, ["1.0"])(x)["1.0"], layer(network[0](x)))
    parameters = list(layer.parameters())
    expected, expected_gradients = output_and_gradients(network, x, parameters)
    output, actual_gradients = output_and_gradients(graph, x, parameters)
    assert torch.equal(output, expected)
    assert all(torch.equal(*pair) for pair in zip(actual_gradients, expected_gradients, strict=True))
