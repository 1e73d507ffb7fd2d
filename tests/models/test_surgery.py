"""Replacing convolutions of timm's and torchvision's networks."""

import copy
import pickle
import re
import weakref

import pytest
import timm
import torch
import torchvision
from torch import nn

from all_pairs import in_turn
from lambdanets import LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, create_model, replace_convolutions
from lambdanets.errors import InputError


def lambda_layer(conv):
    return LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0], scope=5)


# library, network, two convolutions of one block, the block, a convolution of another block
BLOCKS = {
    "timm resnet18": (
        timm, "resnet18", ("layer1.0.conv1", "layer1.0.conv2"), r"layer1.0 \(BasicBlock\)", "layer2.0.conv2"
    ),
    "timm resnet50, shortcut": (
        timm, "resnet50", ("layer3.0.conv2", "layer3.0.downsample.0"), r"layer3.0 \(Bottleneck\)", "layer3.1.conv2"
    ),
    "torchvision mobilenet_v2": (
        torchvision, "mobilenet_v2", ("features.2.conv.1.0", "features.2.conv.2"), r"features.2 \(InvertedResidual\)",
        "features.3.conv.1.0",
    ),
}  # fmt: skip


def create_on_meta(library, name):
    with torch.device("meta"):
        return timm.create_model(name) if library is timm else getattr(torchvision.models, name)()


def lambda_layer_on_meta(conv):
    return LambdaLayer2d(conv.in_channels, conv.out_channels, heads=1, stride=conv.stride[0], scope=5, device="meta")


@pytest.mark.parametrize(("library", "network", "pair", "block", "other_name"), BLOCKS.values(), ids=BLOCKS.keys())
def test_a_block_gets_one_lambda_layer_unless_several_are_allowed(library, network, pair, block, other_name):
    model = create_on_meta(library, network)
    before = dict(model.named_modules())
    message = rf"where must select at most one lambda layer per block, got {pair[0]}, {pair[1]} in {block};.*Appendix B"
    with pytest.raises(InputError, match=message):
        replace_convolutions(model, lambda_layer_on_meta, [*pair, other_name])
    assert dict(model.named_modules()) == before
    assert set(replace_convolutions(model, lambda_layer_on_meta, [pair[0], other_name])) == {pair[0], other_name}
    with pytest.raises(InputError, match=message):
        replace_convolutions(model, lambda_layer_on_meta, [pair[1]])
    replace_convolutions(model, lambda_layer_on_meta, [pair[1]], allow_several_per_block=True)
    assert all(isinstance(model.get_submodule(name), LambdaLayer2d) for name in pair)


def test_sequential_networks_have_no_blocks():
    model = create_on_meta(torchvision, "vgg11")
    names = replace_convolutions(model, lambda_layer_on_meta, lambda name, conv: name.startswith("features"))
    assert len(names) == 8


@pytest.mark.parametrize(("convolution", "layer"), [(nn.Conv1d, LambdaLayer1d), (nn.Conv3d, LambdaLayer3d)])
def test_replaces_convolutions_of_sequences_and_volumes(convolution, layer):
    network = nn.Sequential(convolution(4, 8, 3, stride=2, padding=1), nn.ReLU(), convolution(8, 4, 3, padding=1))
    x = torch.randn(2, 4, *(9, 6, 5)[: layer.dimensions])
    shape = network(x).shape

    def make_layer(conv):
        return layer(conv.in_channels, conv.out_channels, stride=conv.stride[0], scope=3)

    assert replace_convolutions(network, make_layer, "*") == ["0", "2"]
    assert network(x).shape == shape


def lambda_on_meta(*channels, layer=LambdaLayer2d, **options):
    return lambda conv: layer(*channels, **options, device="meta")


def test_where_accepts_shell_style_patterns():
    model = create_on_meta(torchvision, "resnet18")
    assert replace_convolutions(model, lambda_layer_on_meta, "layer[34].*.conv2") == [
        "layer3.0.conv2", "layer3.1.conv2", "layer4.0.conv2", "layer4.1.conv2",
    ]  # fmt: skip
    names = replace_convolutions(model, lambda_layer_on_meta, ["layer1.0.conv1", "layer2.?.conv1"])
    assert names == ["layer1.0.conv1", "layer2.0.conv1", "layer2.1.conv1"]
    names = replace_convolutions(model, lambda_layer_on_meta, "layer4.0.conv[12]*", allow_several_per_block=True)
    assert names == ["layer4.0.conv1"]  # no projection of the lambda layer at layer4.0.conv2


CONVOLUTION = "layer4.0.conv1"
INVALID = [
    (lambda conv: None, CONVOLUTION, "make_layer must return a layer for layer4.0.conv1, got None"),
    (lambda_on_meta(256, stride=2), CONVOLUTION, "of layer4.0.conv1, got (256, 256, (2, 2))"),
    (lambda_on_meta(512, stride=2), CONVOLUTION, "got (512, 512, (2, 2))"),
    (lambda_on_meta(256, 512), CONVOLUTION, "got (256, 512, (1, 1))"),
    (lambda_on_meta(256, 512, layer=LambdaLayer3d, stride=2, scope=3), CONVOLUTION, "got (256, 512, (2, 2, 2))"),
    (lambda_layer_on_meta, ["layer4.0.conv9"], "got 'layer4.0.conv9'; the nearest are layer4.0.conv"),
    (lambda_layer_on_meta, "layer9.*.conv2", "got 'layer9.*.conv2'; the nearest are layer"),
    (lambda_layer_on_meta, "stages.3.blocks", "got 'stages.3.blocks'; its convolutions include layer4.0.downsample.0"),
    (lambda_layer_on_meta, lambda *_: False, "where must select at least one of 20 convolutions of ResNet, got none"),
]


@pytest.mark.parametrize(("make_layer", "where", "message"), INVALID, ids=[message for *_, message in INVALID])
def test_rejects_layers_that_do_not_fit_and_unmatched_names_with_suggestions(make_layer, where, message):
    model = create_on_meta(torchvision, "resnet18")
    before = dict(model.named_modules())
    with pytest.raises(InputError, match=re.escape(message)):
        replace_convolutions(model, make_layer, where)
    assert dict(model.named_modules()) == before


def test_new_layers_have_the_dtype_and_training_mode_of_their_convolution():
    model = timm.create_model("resnet18").to(torch.bfloat16).eval()
    replace_convolutions(model, lambda_layer, where="layer4.1.conv2")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not any(module.training for module in model.modules())


def replaced(name, where):
    model = timm.create_model(name)
    replace_convolutions(model, lambda_layer, where)
    return model


def reset(module):
    getattr(module, "reset_parameters", lambda: None)()


INITIALIZATIONS = {
    "timm": lambda model: model.init_weights(),
    "timm without zero_init_last": lambda model: model.init_weights(zero_init_last=False),
    "modules": lambda model: [reset(module) for module in model.modules()],
    "apply": lambda model: model.apply(reset),
}


MODELS = (lambda: create_model("lambda_resnet20_small"), lambda: replaced("resnet10t", "layer4.*.conv2"))


@pytest.mark.parametrize(("initialization", "make"), in_turn(INITIALIZATIONS, MODELS))
def test_initialization_by_other_code_keeps_that_of_lambda_layers(initialization, make):
    model = pickle.loads(pickle.dumps(copy.deepcopy(make())))
    INITIALIZATIONS[initialization](model)
    layers = [module for module in model.modules() if isinstance(module, LambdaLayer2d)]
    assert layers
    for layer in layers:
        weights = [module.weight for module in (layer.query_projection, layer.key_projection, layer.value_projection)]
        stds = [(16 * layer.dim) ** -0.5, layer.dim**-0.5, layer.dim**-0.5, 1]  # as in the paper
        assert [x.std().item() for x in (*weights, layer.embedding.table)] == pytest.approx(stds, rel=0.1)
    reference = weakref.ref(model)
    del model, layers, layer
    assert reference() is None  # memory is freed at once
