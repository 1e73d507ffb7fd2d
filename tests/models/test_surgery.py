import pytest
import timm
import torch
import torchvision
from torch import nn

from lambdanets import LambdaLayer2d, replace_convolutions
from lambdanets.errors import InputError


def lambda_layer(convolution):
    return LambdaLayer2d(convolution.in_channels, convolution.out_channels, stride=convolution.stride[0], scope=5)


def test_a_torchvision_resnet_takes_lambda_layers_and_keeps_its_output_shape():
    model = torchvision.models.resnet18(num_classes=3)
    names = replace_convolutions(
        model, lambda_layer, lambda name, conv: name.startswith("layer4") and name.endswith("conv2")
    )
    assert names == ["layer4.0.conv2", "layer4.1.conv2"]
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
    with pytest.raises(ValueError, match="where names 1, no Conv2d of Sequential"):
        replace_convolutions(model, lambda_layer, ["0", "1"])
    assert isinstance(model[0], nn.Conv2d)


def test_choosing_nothing_is_refused():
    with pytest.raises(ValueError, match="where chose none of the 1 convolutions"):
        replace_convolutions(nn.Sequential(nn.Conv2d(8, 8, 3)), lambda_layer, lambda name, conv: False)


# a network, two convolutions of one block, the block, one convolution of another block
BLOCKS = {
    "timm resnet18": (
        timm, "resnet18", ("layer1.0.conv1", "layer1.0.conv2"), r"layer1.0 \(BasicBlock\)", "layer2.0.conv2"
    ),
    "timm resnet50": (
        timm, "resnet50", ("layer3.1.conv2", "layer3.1.conv3"), r"layer3.1 \(Bottleneck\)", "layer4.0.conv2"
    ),
    "timm resnet50, shortcut": (
        timm, "resnet50", ("layer3.0.conv2", "layer3.0.downsample.0"), r"layer3.0 \(Bottleneck\)", "layer3.1.conv2"
    ),
    "timm mobilenetv2": (
        timm, "mobilenetv2_100", ("blocks.1.0.conv_pw", "blocks.1.0.conv_dw"), r"blocks.1.0 \(InvertedResidual\)",
        "blocks.1.1.conv_dw",
    ),
    "torchvision resnet18": (
        torchvision, "resnet18", ("layer4.1.conv1", "layer4.1.conv2"), r"layer4.1 \(BasicBlock\)", "layer4.0.conv2"
    ),
    "torchvision mobilenet_v2": (
        torchvision, "mobilenet_v2", ("features.2.conv.1.0", "features.2.conv.2"), r"features.2 \(InvertedResidual\)",
        "features.3.conv.1.0",
    ),
}  # fmt: skip
blocks = pytest.mark.parametrize(("library", "network", "two", "block", "another"), BLOCKS.values(), ids=BLOCKS.keys())


def on_meta(library, name):
    with torch.device("meta"):
        return timm.create_model(name) if library is timm else getattr(torchvision.models, name)()


def meta_layer(convolution):
    return LambdaLayer2d(
        convolution.in_channels,
        convolution.out_channels,
        heads=1,
        stride=convolution.stride[0],
        scope=5,
        device="meta",
    )


@blocks
def test_two_lambda_layers_in_one_block_are_refused_and_nothing_is_changed(library, network, two, block, another):
    model = on_meta(library, network)
    before = dict(model.named_modules())
    message = rf"where leaves block {block} with more than one lambda layer, at {two[0]}, {two[1]};.*Appendix B"
    with pytest.raises(InputError, match=message):
        replace_convolutions(model, meta_layer, [*two, another])
    assert dict(model.named_modules()) == before


@blocks
def test_one_lambda_layer_a_block_is_taken_and_a_second_refused_later(library, network, two, block, another):
    model = on_meta(library, network)
    assert set(replace_convolutions(model, meta_layer, [two[0], another])) == {two[0], another}
    with pytest.raises(InputError, match=f"where leaves block {block} with more than one"):
        replace_convolutions(model, meta_layer, [two[1]])
    assert isinstance(model.get_submodule(two[1]), nn.Conv2d)


@blocks
def test_several_lambda_layers_a_block_are_taken_when_allowed(library, network, two, block, another):
    model = on_meta(library, network)
    replace_convolutions(model, meta_layer, two, allow_several_per_block=True)
    assert all(isinstance(model.get_submodule(name), LambdaLayer2d) for name in two)


def test_every_block_of_a_resnet_may_hold_one():
    model = on_meta(timm, "resnet50")
    names = replace_convolutions(model, meta_layer, lambda name, conv: name.endswith("conv2"))
    assert len(names) == 16


@pytest.mark.parametrize("library", [timm, torchvision], ids=["timm", "torchvision"])
def test_a_plain_sequence_has_no_blocks(library):
    model = on_meta(library, "vgg11")
    names = replace_convolutions(model, meta_layer, lambda name, conv: name.startswith("features"))
    assert len(names) == 8


def test_other_layers_than_lambda_layers_may_come_several_a_block():
    model = on_meta(torchvision, "resnet18")
    replace_convolutions(model, lambda conv: nn.Identity(), ["layer1.0.conv1", "layer1.0.conv2"])
    assert isinstance(model.layer1[0].conv1, nn.Identity)


def test_a_lambda_layer_inside_another_module_counts():
    model = on_meta(torchvision, "resnet18")
    with pytest.raises(InputError, match=r"layer1.0 \(BasicBlock\)"):
        replace_convolutions(
            model, lambda conv: nn.Sequential(meta_layer(conv), nn.ReLU()), ["layer1.0.conv1", "layer1.0.conv2"]
        )
