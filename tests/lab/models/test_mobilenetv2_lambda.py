"""MobileNet-v2 with lambda blocks: parameter counts, architecture, and timm's functions."""

import timm
import torch

from lambdanets import LambdaLayer2d, create_model
from lambdanets_lab.models.mobilenetv2_lambda import LambdaMobileNetV2, LightweightLambdaBlock


def test_model_without_lambda_blocks_is_timms_mobilenetv2():
    timm_model, model = timm.create_model("mobilenetv2_100").eval(), LambdaMobileNetV2(lambda_blocks=()).eval()
    model.load_state_dict(timm_model.state_dict())
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(x), timm_model(x))


def test_blocks_10_and_16_have_lambda_layers_with_query_depth_8():
    model = create_model("mobilenetv2_lambda")
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_208_360
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LambdaLayer2d)}
    assert list(layers) == ["blocks.3.3.mixer", "blocks.5.2.mixer"]
    sizes = [(layer.dim, layer.query_depth, layer.heads, layer.embedding.scope) for layer in layers.values()]
    assert sizes == [(64, 8, 4, (5, 5)), (160, 8, 4, (5, 5))]


def test_lambda_block_is_initialized_as_identity():
    torch.manual_seed(0)
    block = LightweightLambdaBlock(8, query_depth=4, heads=2, scope=5)
    x = torch.randn(2, 8, 5, 6)
    assert torch.equal(block(x), x)
    torch.nn.init.ones_(block.bn3.weight)
    assert not torch.equal(block(x), x)
