"""ResNets with mixers: architecture, options and errors."""

import pytest
import timm
import torch

from lambdanets import create_model
from lambdanets_lab.mixers import MIXERS


def shapes(network):
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def test_channel_attention_network_is_timms_seresnet50():
    with torch.device("meta"):
        network = create_model("resnet50_mixer", mixer="channel_attention")
        assert shapes(network) == shapes(timm.create_model("seresnet50"))


@pytest.mark.parametrize("pattern", ["LLLL", "CCLL"])
def test_lambda_mixer_network_is_resnet50_lambda(pattern):
    with torch.device("meta"):
        network = create_model("resnet50_mixer", mixer="lambda", pattern=pattern, query_depth=8)
        assert shapes(network) == shapes(create_model("resnet50_lambda", pattern=pattern, query_depth=8))


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_network_has_outputs_and_gradients(mixer):
    model = create_model("resnet20_mixer_small", mixer=mixer, pattern="CLLL", num_classes=5)
    output = model(torch.randn(2, 3, 20, 13))
    assert output.shape == (2, 5)
    output.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": "global_atention"}, "got 'global_atention'; the nearest is global_attention"),
        ({"mixer": "global_attention", "scope": 3}, "mixer global_attention has no option scope; its options are: hea"),
        ({"mixer": "local_attention", "scope": 4}, "scope must be odd, got 4"),
        ({"mixer": "axial_attention", "heads": 7}, "heads must divide dim_out = 64, got 7"),
    ],
)
def test_rejects_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        create_model("resnet50_mixer", **options)
