import pytest
import timm
import torch
import torchvision
from torch import nn

from lambdanets import LambdaLayer2d, replace_convolutions


def lambda_layer(convolution):
    return LambdaLayer2d(convolution.in_channels, convolution.out_channels, stride=convolution.stride[0], scope=5)


def test_a_torchvision_resnet_takes_lambda_layers_and_keeps_its_output_shape():
    model = torchvision.models.resnet18(num_classes=3)
    names = replace_convolutions(
        model, lambda_layer, lambda name, conv: name.startswith("layer4") and conv.stride == (1, 1)
    )
    assert names == ["layer4.0.conv2", "layer4.1.conv1", "layer4.1.conv2"]
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)


def test_a_strided_convolution_is_replaced_with_the_same_output_size():
    model = timm.create_model("mobilenetv2_100", num_classes=3)
    dense = {name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)}
    before = model.forward_features(torch.randn(2, 3, 64, 64)).shape
    replace_convolutions(model, lambda_layer, dense - {"conv_stem"})
    assert model.forward_features(torch.randn(2, 3, 64, 64)).shape == before


def test_a_convolution_inside_a_sequence_is_found_by_its_name():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)))
    assert replace_convolutions(model, lambda_layer, ["1.1"]) == ["1.1"]
    assert isinstance(model[1][1], LambdaLayer2d)
    assert isinstance(model[0], nn.Conv2d)


def test_the_new_layer_takes_over_the_training_mode():
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1)).eval()
    replace_convolutions(model, lambda_layer, ["0"])
    assert not model[0].training
    assert not model[0].query_norm.training


def test_a_name_that_is_no_convolution_is_refused_and_nothing_is_changed():
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())
    with pytest.raises(ValueError, match="where names 1, which is no Conv2d of Sequential"):
        replace_convolutions(model, lambda_layer, ["0", "1"])
    assert isinstance(model[0], nn.Conv2d)


def test_choosing_nothing_is_refused():
    with pytest.raises(ValueError, match="where chose none of the 1 convolutions"):
        replace_convolutions(nn.Sequential(nn.Conv2d(8, 8, 3)), lambda_layer, lambda name, conv: False)
