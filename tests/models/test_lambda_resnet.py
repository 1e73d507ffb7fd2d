"""LambdaResNets: architecture, and timm's functions. The paper's parameter counts: tests/lab/tables."""

import pytest
import timm.optim
import torch
from timm.models.resnet import BasicBlock

from lambdanets import LambdaLayer2d, create_model


def test_blocks_with_lambda_layers_and_se_match_table_19():
    with torch.device("meta"):
        model = create_model("lambda_resnet101")
    stages = model.stages()
    assert [len(stage) for stage in stages] == [3, 4, 23, 3]
    lambda_blocks = [[i for i, x in enumerate(stage, 1) if isinstance(x.conv2, LambdaLayer2d)] for stage in stages]
    assert lambda_blocks == [[], [], [6, 12, 18], [1, 2, 3]]
    assert all(block.se is not None for stage in stages[:2] for block in stage)
    assert all(block.se is None for stage in stages[2:] for block in stage)


def test_small_model_keeps_the_resolution_of_small_images():
    model = create_model("lambda_resnet20_small", in_chans=1, features_only=True)
    features = model(torch.randn(2, 1, 28, 28))
    assert model.feature_info.reduction() == [1, 1, 2, 4, 8]
    assert [f.shape[2] for f in features] == [28, 28, 14, 7, 4]
    dilated = create_model("lambda_resnet20_small", in_chans=1, features_only=True, output_stride=4)
    assert [f.shape[2] for f in dilated(torch.randn(2, 1, 28, 28))] == [28, 28, 14, 7, 7]


def test_embedding_tables_have_no_weight_decay():
    model = create_model("lambda_resnet20_small", device="meta")
    for each in (model, torch.compile(model)):
        optimizer = timm.optim.create_optimizer_v2(each, "adamw", weight_decay=0.1)
        undecayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
        tables = [parameter for name, parameter in each.named_parameters() if name.endswith("table")]
        assert len(tables) == 2
        assert undecayed.issuperset(map(id, tables))


def test_basic_blocks_have_lambda_layers_too():
    options = {"block": BasicBlock, "lambda_blocks": ((), (), (1, 2), (1,)), "share_embeddings": True}
    model = create_model("lambda_resnet20_small", num_classes=3, **options).eval()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert model.layer3[0].conv2.embedding is model.layer3[1].conv2.embedding
    assert model.layer3[0].conv2.embedding is not model.layer4[0].conv2.embedding


@pytest.mark.parametrize("name", ["resnet50_lambda", "resnet50_mixer"])
def test_patterns_are_of_the_given_layers(name):
    model = create_model(name, pattern="LCCL", layers=(2, 1, 1, 4), device="meta")
    layers = [isinstance(block.conv2, LambdaLayer2d) for stage in model.stages() for block in stage]
    assert layers == [True, True, False, False, True, True, True, True]


@pytest.mark.parametrize("pattern", ["LLL", "LLLLL", "LXLL", ""])
def test_rejects_invalid_patterns(pattern):
    with pytest.raises(ValueError, match="pattern must be four letters, C or L"):
        create_model("resnet50_lambda", pattern=pattern)


def test_shared_embeddings_are_one_table_per_resolution():
    with torch.device("meta"):
        model, unshared = (create_model("resnet50_lambda", share_embeddings=share) for share in (True, False))
    shared_count, count = (sum(p.numel() for p in network.parameters()) for network in (model, unshared))
    # 16 layers at 4 resolutions: 4 at 56x56, including the first of c3, then 4, 6 and 2
    assert shared_count == count - 12 * 23 * 23 * 16
    assert model.layer1[0].conv2.embedding is model.layer2[0].conv2.embedding
    assert model.layer2[1].conv2.embedding is model.layer3[0].conv2.embedding
    assert model.layer2[1].conv2.embedding is not model.layer2[0].conv2.embedding


def test_options_reach_every_lambda_layer():
    options = {"normalize_keys": "none", "normalize_queries": "softmax", "multi_head": True, "position": False}
    with torch.device("meta"):
        model = create_model("lambda_resnet20_small", batch_norm=False, **options)
    layers = [module for module in model.modules() if isinstance(module, LambdaLayer2d)]
    assert len(layers) == 2
    for layer in layers:
        assert (layer.normalize_keys, layer.normalize_queries, layer.multi_head) == (None, "softmax", True)
        assert layer.embedding is None
        assert isinstance(layer.query_norm, torch.nn.Identity)
