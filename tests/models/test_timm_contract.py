"""timm's requirements on models: shapes on the meta device, everything else on small models."""

import fnmatch
import re

import pytest
import timm
import torch
from timm.models import group_parameters

from lambdanets import create_model, list_models

SMALL = ("lambda_resnet20_small", "resnet20_mixer_small", "mobilenetv2_lambda")
# without deeper models, which differ only in the number of blocks, and without U-Nets, which are no classifiers
SHALLOW = [name for name in list_models() if not re.search("1[05]|[2-9][0-9]0|unet", name)]
parametrize_small = pytest.mark.parametrize("name", SMALL)


def create_on_meta(name, **options):
    return timm.create_model(name, device="meta", dtype=torch.float32, **options)


@pytest.mark.parametrize("name", SHALLOW)
def test_feature_and_head_shapes_match_the_default_cfg(name):
    model = create_on_meta(name).eval()
    cfg = model.default_cfg
    assert cfg["architecture"] == name
    x = torch.empty(1, *cfg["input_size"], device="meta")
    features = model.forward_features(x)
    assert tuple(features.shape) == (1, model.num_features, *cfg["pool_size"])
    assert model.forward_head(features, pre_logits=True).shape == (1, model.head_hidden_size)
    assert model.forward_head(features).shape == (1, model.num_classes) == (1, 1000)
    weights = model.state_dict()
    assert weights[f"{cfg['classifier']}.weight"].shape[0] == 1000
    assert weights[f"{cfg['first_conv']}.weight"].shape[1] == model.in_chans == 3


@pytest.mark.parametrize("name", [*SMALL, "performer_relu", "channel_attention"])
def test_every_tensor_has_the_requested_device_and_dtype(name):
    name, mixer = (name, None) if name in SMALL else ("resnet20_mixer_small", name)
    model = timm.create_model(name, mixer=mixer, device="meta", dtype=torch.float64)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    assert not [key for key, tensor in tensors if tensor.device.type != "meta"]
    assert not [key for key, tensor in tensors if tensor.is_floating_point() and tensor.dtype != torch.float64]


@parametrize_small
def test_classifier_and_pooling_can_be_removed(name):
    x = torch.empty(2, 3, 32, 32, device="meta")
    model = create_on_meta(name).eval()
    side = 32 // model.feature_info[-1]["reduction"]
    pooled, maps = (2, model.head_hidden_size), (2, model.num_features, side, side)
    assert create_on_meta(name, num_classes=0).eval()(x).shape == pooled
    assert create_on_meta(name, num_classes=0, global_pool="").eval()(x).shape == maps
    model.reset_classifier(0)
    assert model.num_classes == 0
    assert model(x).shape == pooled
    model.reset_classifier(0, "")
    assert model(x).shape == maps
    model.reset_classifier(7, "avg")
    assert model(x).shape == (2, 7)


@parametrize_small
def test_parameter_groups_cover_every_parameter_once(name):
    model = create_on_meta(name)
    groups = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    names = {key for key, _ in model.named_parameters()}
    assert set(groups) == names
    assert len(set(groups.values())) > 3
    no_decay = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    assert not [pattern for pattern in no_decay if not fnmatch.filter(names, pattern)]


@parametrize_small
@pytest.mark.parametrize("feature_cls", [None, "getter", "fx"], ids=str)
def test_features_match_feature_info(name, feature_cls):
    model = create_on_meta(name, features_only=True, feature_cls=feature_cls).eval()
    info = model.feature_info
    assert len(info.channels()) == len(info.reduction()) == 5
    outputs = model(torch.empty(1, 3, 64, 96, device="meta"))
    assert [x.shape[1] for x in outputs] == info.channels()
    assert [tuple(x.shape[2:]) for x in outputs] == [(64 // r, 96 // r) for r in info.reduction()]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lambda_resnet50", {"head": 8}, "^lambda_resnet50 has no option 'head'; the nearest is heads$"),
        ("lambda_resnet50", {"pretrained": True}, "lambda_resnet50 cannot be built: No pretrained weights exist"),
        ("resnetrs50_plain", {"scope": 7}, "resnetrs50_plain has no option 'scope'$"),
        ("unet_small", {"block_args": 1}, "unet_small has no option 'block_args'$"),
        ("local-dir:/no/such/folder", {"pretrained": True}, "^/no/such/folder/config.json is not a config"),
    ],
)
def test_rejects_unknown_model_arguments(name, options, message):
    with pytest.raises(ValueError, match=message):
        create_model(name, **options)
