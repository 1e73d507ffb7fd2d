import pytest
import timm
import torch

from lambdanets import LambdaLayer2d, create_model
from lambdanets.models.mobilenetv2_lambda import LambdaMobileNetV2, LightweightLambdaBlock


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_table_17_comes_out():
    assert round(count(create_model("mobilenetv2_lambda")) / 1e6, 2) == 3.21


def test_without_lambda_blocks_it_is_timms_mobilenetv2_key_by_key():
    plain, ours = timm.create_model("mobilenetv2_100").eval(), LambdaMobileNetV2(lambda_blocks=()).eval()
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(ours(x), plain(x))


def test_the_10th_and_the_16th_block_hold_lambda_layers_of_8_queries_a_head():
    model = create_model("mobilenetv2_lambda")
    found = {name: m for name, m in model.named_modules() if isinstance(m, LambdaLayer2d)}
    assert list(found) == ["blocks.3.3.mixer", "blocks.5.2.mixer"]
    assert [(m.dim, m.query_depth, m.heads, m.embedding.scope) for m in found.values()] == [
        (64, 8, 4, (5, 5)),
        (160, 8, 4, (5, 5)),
    ]


def test_a_lambda_block_starts_as_the_identity():
    torch.manual_seed(0)
    block = LightweightLambdaBlock(8, query_depth=4, heads=2, scope=5)
    x = torch.randn(2, 8, 5, 6)
    assert torch.equal(block(x), x)
    torch.nn.init.ones_(block.bn3.weight)
    assert not torch.equal(block(x), x)


def test_features_classifier_and_checkpointing_are_timms():
    features = create_model("mobilenetv2_lambda", features_only=True)
    x = torch.randn(2, 3, 65, 97)
    plain = timm.create_model("mobilenetv2_100", features_only=True)
    assert [f.shape for f in features(x)] == [f.shape for f in plain(x)]
    model = create_model("mobilenetv2_lambda", in_chans=1)
    model.reset_classifier(7)
    model.set_grad_checkpointing()
    model(x[:, :1]).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_drop_path_reaches_the_lambda_blocks():
    model = create_model("mobilenetv2_lambda", drop_path_rate=0.4)
    assert model.blocks[5][2].drop_path.drop_prob > model.blocks[3][3].drop_path.drop_prob > 0


def test_weights_survive_saving_and_loading_through_timm(tmp_path):
    model = create_model("mobilenetv2_lambda", num_classes=5).eval()
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [((18,), "numbers from 1 to 17, got"), ((0,), "numbers from 1 to 17"), ((4,), "unlike block 4")],
)
def test_a_block_that_cannot_be_one_is_named(blocks, message):
    with pytest.raises(ValueError, match=message):
        create_model("mobilenetv2_lambda", lambda_blocks=blocks)
