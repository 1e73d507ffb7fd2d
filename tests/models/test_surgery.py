import pytest
import timm
import torch
import torchvision
from torch import nn

from lambdanets import LambdaLayer, LambdaLayer1d, LambdaLayer2d, replace_convolutions
from lambdanets.errors import InputError
from lambdanets.layers.baselines import LocalAttention


def lambda_layer(convolution):
    return LambdaLayer2d(convolution.in_channels, convolution.out_channels, stride=convolution.stride[0], scope=5)


def test_replacing_in_a_torchvision_resnet_keeps_its_output_shape():
    model = torchvision.models.resnet18(num_classes=3)
    names = replace_convolutions(
        model, lambda_layer, lambda name, conv: name.startswith("layer4") and name.endswith("conv2")
    )
    assert names == ["layer4.0.conv2", "layer4.1.conv2"]
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)


def test_replacing_strided_convolutions_keeps_the_output_size():
    model = timm.create_model("mobilenetv2_100", num_classes=3)
    dense = {name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)}
    before = model.forward_features(torch.randn(2, 3, 64, 64)).shape
    replace_convolutions(model, lambda_layer, dense - {"conv_stem"})
    assert model.forward_features(torch.randn(2, 3, 64, 64)).shape == before


def test_replaces_a_convolution_in_a_nested_sequential_by_name():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)))
    assert replace_convolutions(model, lambda_layer, ["1.1"]) == ["1.1"]
    assert isinstance(model[1][1], LambdaLayer2d)
    assert isinstance(model[0], nn.Conv2d)


def test_new_layers_take_over_the_training_mode():
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1)).eval()
    replace_convolutions(model, lambda_layer, ["0"])
    assert not model[0].training
    assert not model[0].query_norm.training


def test_rejects_names_that_are_not_convolutions():
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())
    with pytest.raises(ValueError, match="where must name Conv2d modules of Sequential, got '1'"):
        replace_convolutions(model, lambda_layer, ["0", "1"])
    assert isinstance(model[0], nn.Conv2d)


def test_rejects_an_empty_selection():
    with pytest.raises(ValueError, match="where must select at least one of 1 convolutions of Sequential, got none"):
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


def create_on_meta(library, name):
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
def test_rejects_two_lambda_layers_in_one_block(library, network, two, block, another):
    model = create_on_meta(library, network)
    before = dict(model.named_modules())
    message = rf"where must select at most one lambda layer per block, got {two[0]}, {two[1]} in {block};.*Appendix B"
    with pytest.raises(InputError, match=message):
        replace_convolutions(model, meta_layer, [*two, another])
    assert dict(model.named_modules()) == before


@blocks
def test_rejects_adding_a_second_lambda_layer_to_a_block(library, network, two, block, another):
    model = create_on_meta(library, network)
    assert set(replace_convolutions(model, meta_layer, [two[0], another])) == {two[0], another}
    with pytest.raises(InputError, match=f"where must select at most one lambda layer per block, got .* in {block}"):
        replace_convolutions(model, meta_layer, [two[1]])
    assert isinstance(model.get_submodule(two[1]), nn.Conv2d)


@blocks
def test_allow_several_per_block_accepts_two_lambda_layers(library, network, two, block, another):
    model = create_on_meta(library, network)
    replace_convolutions(model, meta_layer, two, allow_several_per_block=True)
    assert all(isinstance(model.get_submodule(name), LambdaLayer2d) for name in two)


def test_one_lambda_layer_per_resnet_block_is_accepted():
    model = create_on_meta(timm, "resnet50")
    names = replace_convolutions(model, meta_layer, lambda name, conv: name.endswith("conv2"))
    assert len(names) == 16


@pytest.mark.parametrize("library", [timm, torchvision], ids=["timm", "torchvision"])
def test_plain_sequentials_have_no_blocks(library):
    model = create_on_meta(library, "vgg11")
    names = replace_convolutions(model, meta_layer, lambda name, conv: name.startswith("features"))
    assert len(names) == 8


def test_several_other_layers_per_block_are_accepted():
    model = create_on_meta(torchvision, "resnet18")
    replace_convolutions(model, lambda conv: nn.Identity(), ["layer1.0.conv1", "layer1.0.conv2"])
    assert isinstance(model.layer1[0].conv1, nn.Identity)


def test_nested_lambda_layers_count_in_a_block():
    model = create_on_meta(torchvision, "resnet18")
    with pytest.raises(InputError, match=r"layer1.0 \(BasicBlock\)"):
        replace_convolutions(
            model, lambda conv: nn.Sequential(meta_layer(conv), nn.ReLU()), ["layer1.0.conv1", "layer1.0.conv2"]
        )


def strideless(convolution):
    return LambdaLayer2d(convolution.in_channels, convolution.out_channels, heads=1, device="meta")


MISTAKES = {
    "output channels": (
        lambda conv: LambdaLayer2d(conv.in_channels, stride=conv.stride[0], device="meta"),
        "512 out, stride 2 for layer4.0.conv1, got LambdaLayer2d with 256 channels in, 256 out, stride 2; pass conv",
    ),
    "input channels": (
        lambda conv: LambdaLayer2d(conv.out_channels, stride=conv.stride[0], device="meta"),
        "with 256 channels in, 512 out, .* got LambdaLayer2d with 512 channels in",
    ),
    "stride": (strideless, "stride 2 for layer4.0.conv1, got LambdaLayer2d with 256 channels in, 512 out, stride 1"),
    "another convolution": (lambda conv: nn.Conv2d(256, 512, 3, stride=(2, 1)), r"got Conv2d .* stride \(2, 1\)"),
    "a baseline": (lambda conv: LocalAttention(256, 512), "got LocalAttention with 256 channels in, 512 out, stride 1"),
    "stride inside another module": (
        lambda conv: nn.Sequential(strideless(conv), nn.ReLU()),
        "got Sequential with 256 channels in, 512 out, stride 1",
    ),
    "channels of another module": (
        lambda conv: nn.AvgPool2d(2),
        "got AvgPool2d with 256 channels in, 256 out, stride 2",
    ),
    "no maps": (lambda conv: nn.Flatten(), r"layer that outputs \(b, channels, height, width\), got shape \(2, "),
    "tokens": (lambda conv: LambdaLayer(256, 512), "a layer on maps .*, got LambdaLayer$"),
    "a sequence": (lambda conv: LambdaLayer1d(256, 512), "a layer on maps .*, got LambdaLayer1d"),
    "no module": (lambda conv: 3, "make_layer must return a module, got int"),
    "a module in place of a function": (
        nn.Conv2d(256, 512, 3),
        "make_layer must be a function .* got a Conv2d; write la",
    ),
    "a class in place of a function": (LambdaLayer2d, "make_layer must be a function .* got <class 'lambdanets"),
}


@pytest.mark.parametrize(("make_layer", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_rejects_layers_with_other_channels_or_stride(make_layer, message):
    model = create_on_meta(torchvision, "resnet18")
    before = dict(model.named_modules())
    with pytest.raises(InputError, match=message):
        replace_convolutions(model, make_layer, ["layer4.0.conv1"])
    assert dict(model.named_modules()) == before


class FixedSize(nn.Module):
    """Supports only 7x7 maps."""

    def forward(self, x):
        return x * torch.ones(7, 7)


def test_accepts_modules_for_a_fixed_size():
    model = create_on_meta(torchvision, "resnet18")
    replace_convolutions(model, lambda conv: FixedSize(), ["layer4.1.conv1"])
    assert isinstance(model.layer4[1].conv1, FixedSize)


def test_checking_a_layer_changes_no_statistics_or_random_state():
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1))
    torch.manual_seed(0)
    norm, expected = nn.BatchNorm2d(8), torch.rand(3)
    torch.manual_seed(0)
    replace_convolutions(model, lambda conv: nn.Sequential(norm, nn.Dropout(0.5)), "0")
    assert not norm.num_batches_tracked
    assert torch.equal(torch.rand(3), expected)


def test_where_accepts_shell_style_patterns():
    model = create_on_meta(torchvision, "resnet18")
    assert replace_convolutions(model, meta_layer, "layer[34].*.conv2") == [
        "layer3.0.conv2", "layer3.1.conv2", "layer4.0.conv2", "layer4.1.conv2",
    ]  # fmt: skip
    names = replace_convolutions(model, meta_layer, ["layer1.0.conv1", "layer2.?.conv1"])
    assert names == ["layer1.0.conv1", "layer2.0.conv1", "layer2.1.conv1"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (["layer4.0.conv9"], "got 'layer4.0.conv9'; the nearest are layer4.0.conv"),
        ("layer9.*.conv2", "got 'layer9.*.conv2'; the nearest are layer"),
        ([3], "where must contain names, got 3"),
        (3, "where must be a function of .* or names, got 3"),
        (nn.ReLU(), "or names, got a ReLU"),
    ],
    ids=str,
)
def test_rejects_unmatched_names_with_suggestions(where, message):
    with pytest.raises(InputError, match=message.replace("*", r"\*") if "layer9" in message else message):
        replace_convolutions(create_on_meta(torchvision, "resnet18"), meta_layer, where)
