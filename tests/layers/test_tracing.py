"""Layers under torch.fx, torch.jit.trace and torch.jit.script."""

import warnings

import pytest
import torch
from torch import fx, nn

from lambdanets import LambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding
from lambdanets.layers import DenseEmbedding, EdgeEmbedding
from lambdanets.layers.baselines import MIXERS

# PyTorch deprecates tracing and scripting, at every call.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")

MAPS, SEQUENCE, VOLUME, TOKENS = (2, 8, 6, 5), (2, 8, 6), (2, 8, 3, 4, 2), (2, 6, 8)
LAYERS = {
    "default": (LambdaLayer2d, {}, MAPS),
    "one example": (LambdaLayer2d, {}, (1, *MAPS[1:])),
    "a small scope": (LambdaLayer2d, {"scope": 3}, MAPS),
    "strided": (LambdaLayer2d, {"stride": 2}, MAPS),
    "dilated": (LambdaLayer2d, {"scope": 3, "dilation": 2}, MAPS),
    "intra-depth": (LambdaLayer2d, {"intra_depth": 2}, MAPS),
    "multi-head": (LambdaLayer2d, {"multi_head": True}, MAPS),
    "causal": (LambdaLayer2d, {"causal": True}, MAPS),
    "content only": (LambdaLayer2d, {"position": False}, MAPS),
    "position only": (LambdaLayer2d, {"content": False}, MAPS),
    "L2 keys": (LambdaLayer2d, {"normalize_keys": "l2", "normalize_queries": "softmax"}, MAPS),
    "without norms": (LambdaLayer2d, {"batch_norm": False}, MAPS),
    "a global scope": (LambdaLayer2d, {"scope": None, "grid": (6, 5)}, MAPS),
    "position bias": (LambdaLayer2d, {"position_bias": True}, MAPS),
    "a pool that counts its padding": (LambdaLayer2d, {"stride": 2, "pool": nn.AvgPool2d(3, 2, 1)}, MAPS),
    "a sequence": (LambdaLayer1d, {"scope": 5}, SEQUENCE),
    "a volume": (LambdaLayer3d, {"scope": 3}, VOLUME),
    "tokens": (LambdaLayer, {"embedding": RelativeEmbedding((5,), 16)}, TOKENS),
    "dense embeddings": (LambdaLayer, {"embedding": DenseEmbedding(6, 6, 16)}, TOKENS),
} | {f"mixer {name}": (mixer, {}, (2, 32, 6, 5)) for name, mixer in MIXERS.items()}
layers = pytest.mark.parametrize(("layer", "options", "shape"), LAYERS.values(), ids=LAYERS.keys())
# these two consist of PyTorch's modules, which torch.fx traces and torch.jit.script compiles
LEAVES = {name: case for name, case in LAYERS.items() if name not in ("mixer convolution", "mixer channel_attention")}
leaf_layers = pytest.mark.parametrize(("layer", "options", "shape"), LEAVES.values(), ids=LEAVES.keys())


def make(layer, options, shape):
    torch.manual_seed(0)
    made = layer(shape[-1 if layer is LambdaLayer else 1], **options)
    if "position_bias" in options:
        nn.init.normal_(made.position_bias)
    return made, torch.randn(shape, requires_grad=True)


def gradients(function, x, parameters):
    output = function(x)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return output, torch.autograd.grad((output * weights).sum(), [x, *parameters])


@layers
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_trace_gives_the_outputs_and_gradients_of_the_layer(layer, options, shape, training):
    layer, x = make(layer, options, shape)
    layer.train(training)
    traced = torch.jit.trace(layer, x)
    parameters = list(layer.parameters())
    expected, expected_gradients = gradients(layer, x, parameters)
    output, actual_gradients = gradients(traced, x, parameters)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_saved_trace_runs_any_batch(tmp_path):
    layer, x = make(LambdaLayer2d, {"stride": 2}, MAPS)
    layer.eval()
    torch.jit.trace(layer, x).save(tmp_path / "layer.pt")
    loaded = torch.jit.load(tmp_path / "layer.pt")
    larger = torch.randn(5, *MAPS[1:])
    torch.testing.assert_close(loaded(larger), layer(larger))


@pytest.mark.parametrize("size", [(5, 6), (6, 6), (12, 10)], ids=str)
def test_trace_rejects_other_sizes(size):
    layer, x = make(LambdaLayer2d, {}, MAPS)
    traced = torch.jit.trace(layer.eval(), x)
    with pytest.raises(RuntimeError, match="must match"):
        traced(torch.randn(2, 8, *size))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_tracing_a_layer_does_not_warn(training):
    layer, x = make(LambdaLayer2d, {"stride": 2}, MAPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", torch.jit.TracerWarning)
        torch.jit.trace(layer.train(training), x)
    warned = [warning for warning in caught if "lambdanets" in warning.filename]
    assert not warned


@leaf_layers
def test_scripting_raises_and_suggests_torch_export(layer, options, shape):
    layer, _ = make(layer, options, shape)
    message = rf"^{type(layer).__name__} cannot be compiled by torch.jit.script, .* use torch.export.export\(model, "
    with pytest.raises(NotImplementedError, match=message):
        torch.jit.script(nn.Sequential(nn.ReLU(), layer))


@leaf_layers
def test_torch_fx_sees_a_layer_as_one_node(layer, options, shape):
    layer, x = make(layer, options, shape)
    network = nn.Sequential(nn.Tanh(), nn.Sequential(layer, nn.Tanh()))
    graph = fx.symbolic_trace(network)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1.0", "1.1"]
    parameters = list(layer.parameters())
    expected, expected_gradients = gradients(network, x, parameters)
    output, actual_gradients = gradients(graph, x, parameters)
    assert torch.equal(output, expected)
    assert all(torch.equal(one, other) for one, other in zip(actual_gradients, expected_gradients, strict=True))


class Padded(nn.Module):
    """Passes a mask, a context and edges to layers."""

    def __init__(self):
        super().__init__()
        self.maps = LambdaLayer2d(8, scope=3)
        self.tokens = LambdaLayer(8)
        self.edges = EdgeEmbedding(2, 16)

    def forward(self, x, mask, nodes, edges, types):
        y = self.tokens(nodes, nodes, embeddings=self.edges(edges, types, (2, 3, 3)))
        return self.maps(x, mask).mean() + y.mean()


def test_masks_contexts_and_edges_go_through_torch_fx():
    network = Padded().eval()
    mask = torch.ones(2, 6, 5, dtype=torch.bool)
    mask[:, :, 3:] = False
    inputs = (torch.randn(MAPS), mask, torch.randn(2, 3, 8), torch.tensor([[0], [1], [2]]), torch.tensor([1]))
    assert torch.equal(fx.symbolic_trace(network)(*inputs), network(*inputs))


def test_tracing_a_single_layer_by_fx_raises():
    with pytest.raises(NotImplementedError, match=r"LambdaLayer2d is a single node to torch\.fx: trace the"):
        fx.symbolic_trace(LambdaLayer2d(8))
