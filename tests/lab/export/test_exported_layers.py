"""Every kind of lambda layer in ONNX Runtime and OpenVINO, with dynamic shapes."""

import pytest
import torch
from torch import nn

from lambdanets import LambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding
from lambdanets.layers import DecodingStep
from lambdanets.ops import causal
from lambdanets_lab.benchmark.measurement import relative_error

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
openvino = pytest.importorskip("openvino", reason="openvino is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

MAPS_2D = {"scope": 7, "stride": 2, "intra_depth": 4, "normalize_keys": "l2", "normalize_queries": "softmax"}
DILATED = {"scope": 5, "dilation": 2, "multi_head": True, "heads": 2, "position_bias": True}


def maps(b, n, m):
    return {"x": torch.randn(b, 8, n, m)}


def tokens(b, n, m):
    return {"x": torch.randn(b, 4 * n, 8)}


def pairs(b, n, m):
    return {"x": torch.randn(b, n, 8), "context": torch.randn(b, m, 8), "mask": torch.rand(b, n, m) > 0.3}


# Layers, and their inputs for sizes b, n, m.
LAYERS = {
    "dilated": (LambdaLayer2d(8, **DILATED), maps),
    "volume": (
        LambdaLayer3d(8, scope=None, grid=(7, 11, 9)),
        lambda b, n, m: {"x": torch.randn(b, 8, 1 + m // 3, n // 2, m // 2)},
    ),
    "causal sequence": (LambdaLayer1d(8, scope=7, causal=True), lambda b, n, m: {"x": torch.randn(b, 8, 4 * n)}),
    "tokens": (LambdaLayer(8, embedding=RelativeEmbedding((9,), 16)), tokens),
    "causal tokens": (LambdaLayer(8, causal=True, position=False, normalize_keys="l2"), tokens),
    "padded maps": (LambdaLayer2d(8, **MAPS_2D), lambda *s: maps(*s) | {"mask": torch.rand(s) > 0.3}),
    "masked pairs": (LambdaLayer(8), lambda b, n, m: pairs(b, n, m) | {"embeddings": torch.randn(n, m, 16)}),
    "padded context": (LambdaLayer(8, position=False), lambda *s: pairs(*s) | {"mask": torch.rand(s)[:, :1] > 0.3}),
}


def export_to_both(program, names, path):
    """Write an ONNX file; return functions from tensors to a list of tensors for ONNX Runtime and OpenVINO."""
    torch.onnx.export(program, input_names=names, dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run_onnx(*inputs):
        feeds = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, feeds)]

    def run_openvino(*inputs):
        return [torch.from_numpy(x.copy()) for x in compiled(dict(zip(names, inputs, strict=True))).to_tuple()]

    return run_onnx, run_openvino


@pytest.mark.parametrize("case", LAYERS)
def test_dynamic_graph_equals_the_layer_at_three_other_sizes(case, tmp_path, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(causal, "_MAX_EXPORTED_CHUNKS", 8)  # of 16 positions; the largest case needs 5
    layer, make_inputs = LAYERS[case]
    layer.eval()
    if layer.position_bias is not None:
        nn.init.normal_(layer.position_bias)
    inputs = make_inputs(2, 9, 6)
    sizes = {name: (torch.export.Dim.AUTO,) * x.ndim for name, x in inputs.items()}
    program = torch.export.export(layer, (), inputs, dynamic_shapes=sizes)
    runtimes = export_to_both(program, list(inputs), tmp_path / "layer.onnx")
    for shape in ((1, 5, 11), (3, 13, 4), (2, 20, 17)):
        inputs = make_inputs(*shape)
        with torch.no_grad():
            expected = layer(**inputs)
        for run in runtimes:
            assert relative_error(run(*inputs.values())[0], expected) <= 1e-5


def test_causal_graph_is_exact_for_keys_of_large_range():
    torch.manual_seed(0)
    layer = LambdaLayer1d(8, position=False, causal=True, batch_norm=False, dtype=torch.float64).eval()
    x = 30 * torch.randn(1, 8, 70, dtype=torch.float64)
    for options in ({}, {"dynamic_shapes": ({2: torch.export.Dim.DYNAMIC},)}):
        graph = torch.export.export(layer, (x,), **options).module()
        with torch.no_grad():
            torch.testing.assert_close(graph(x), layer(x), rtol=1e-9, atol=1e-9)


DECODED = {
    "multi-head, L2 keys": (LambdaLayer1d, {"scope": 5, "multi_head": True, "normalize_keys": "l2"}, None),
    "maps": (LambdaLayer2d, {"scope": 3, "intra_depth": 2, "position_bias": True}, (3, 4)),
    "tokens": (LambdaLayer, {"embedding": RelativeEmbedding((5,), 16)}, None),
}


@pytest.mark.parametrize(("layer_type", "options", "grid"), DECODED.values(), ids=DECODED.keys())
def test_exported_decoding_step_equals_the_layer_on_the_whole_sequence(layer_type, options, grid, tmp_path):
    torch.manual_seed(0)
    layer = layer_type(8, causal=True, **options).eval()
    if layer.position_bias is not None:
        nn.init.normal_(layer.position_bias)
    step = DecodingStep(layer, grid)
    x = torch.randn(2, 8, 12)
    whole = x.mT if layer_type is LambdaLayer else x if grid is None else x.unflatten(2, grid)
    with torch.no_grad():
        expected = layer(whole)
    expected = expected.mT if layer_type is LambdaLayer else expected.flatten(2)
    program = torch.export.export(step, (x[:, :, 0], *step.start(2)))
    for run in export_to_both(program, ["x", *step.state_names], tmp_path / "step.onnx"):
        state, outputs = step.start(2), []
        for position in range(12):
            output, *state = run(x[:, :, position], *state)
            outputs.append(output)
        assert relative_error(torch.stack(outputs, 2), expected) <= 1e-5
