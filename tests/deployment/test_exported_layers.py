"""Every kind of lambda layer in ONNX Runtime and OpenVINO, with a graph for all sizes."""

import pytest
import torch

from lambdanets import LambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
openvino = pytest.importorskip("openvino", reason="openvino is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

MAPS, SEQUENCE, VOLUME, TOKENS = (2, 8, 14, 18), (2, 8, 40), (2, 8, 4, 6, 5), (2, 30, 8)
LAYERS = {
    "scope 23": (LambdaLayer2d, {}, MAPS),
    "strided": (LambdaLayer2d, {"scope": 7, "stride": 2}, MAPS),
    "dilated": (LambdaLayer2d, {"scope": 5, "dilation": 2}, MAPS),
    "intra-depth": (LambdaLayer2d, {"scope": 7, "intra_depth": 4}, MAPS),
    "multi-head": (LambdaLayer2d, {"scope": 7, "multi_head": True}, MAPS),
    "L2 keys": (LambdaLayer2d, {"scope": 7, "normalize_keys": "l2", "normalize_queries": "softmax"}, MAPS),
    "causal maps": (LambdaLayer2d, {"scope": 7, "causal": True}, MAPS),
    "global scope": (LambdaLayer2d, {"scope": None, "grid": (16, 16)}, MAPS),
    "position bias": (LambdaLayer2d, {"scope": 7, "position_bias": True}, MAPS),
    "sequence": (LambdaLayer1d, {"scope": 7}, SEQUENCE),
    "causal sequence, L2 keys": (LambdaLayer1d, {"scope": 7, "causal": True, "normalize_keys": "l2"}, SEQUENCE),
    "volume": (LambdaLayer3d, {"scope": 3}, VOLUME),
    "tokens": (LambdaLayer, {"embedding": RelativeEmbedding((9,), 16)}, TOKENS),
    "causal tokens": (LambdaLayer, {"causal": True, "position": False}, TOKENS),
}


@pytest.mark.parametrize(("layer_type", "options", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_dynamic_graph_equals_the_layer_at_three_other_sizes(layer_type, options, shape, tmp_path):
    torch.manual_seed(0)
    layer = layer_type(8, **options).eval()
    channel_axis = 2 if layer_type is LambdaLayer else 1
    axes = [axis for axis in range(len(shape)) if axis != channel_axis]
    dynamic = (dict.fromkeys(axes, torch.export.Dim.DYNAMIC),)
    program = torch.export.export(layer, (torch.randn(shape),), dynamic_shapes=dynamic)
    path = tmp_path / "layer.onnx"
    torch.onnx.export(program, input_names=["x"], dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch, factor in ((1, 0.5), (3, 1.7), (2, 0.15)):
        size = [max(1, int(side * factor)) if axis in axes else side for axis, side in enumerate(shape)]
        x = torch.randn(batch, *size[1:])
        with torch.no_grad():
            expected = layer(x)
        for output in (session.run(None, {"x": x.numpy()})[0], compiled([x.numpy()])[0].copy()):
            assert (torch.from_numpy(output) - expected).norm() <= 1e-5 * expected.norm()


def test_causal_graph_is_exact_for_very_different_keys():
    torch.manual_seed(0)
    layer = LambdaLayer1d(8, scope=3, causal=True, batch_norm=False).eval()
    x = 30 * torch.randn(2, 8, 70)
    dynamic = ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC},)
    for options in ({}, {"dynamic_shapes": dynamic}):
        graph = torch.export.export(layer, (x,), **options).module()
        with torch.no_grad():
            torch.testing.assert_close(graph(x), layer(x), rtol=1e-4, atol=1e-4)
