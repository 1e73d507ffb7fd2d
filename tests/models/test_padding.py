"""Hooks that hide padding: outputs, gradients and statistics do not depend on it."""

import pytest
import timm
import torch
from torch import nn

from lambdanets import create_model
from lambdanets.adoption.trial import randomize
from lambdanets.errors import InputError
from lambdanets.models.mask_rcnn import PyramidBackbone
from lambdanets.models.padding import add_padding_hooks, padded_batch

SHALLOW = {"layers": (1, 1, 2, 1), "channels": (8, 16, 32, 64)}
# Together they have squeeze-and-excitation, pooled shortcuts, strided lambda layers, max pooling and depthwise
# convolutions.
NETWORKS = {
    "resnetrs50": SHALLOW,
    "lambda_resnet50": SHALLOW | {"lambda_blocks": ((), (), (1, 2), (1,)), "scope": 5},
    "resnet50_lambda": SHALLOW | {"layers": (1, 2, 1, 1), "pattern": "CLLL", "scope": 5, "intra_depth": 2},
    "mobilenetv2_lambda": {"scope": 5},
    "mobilenetv3_small_050": {},
}
SIZES = [(37, 60), (64, 33), (50, 5)]


def random_network(name):
    torch.manual_seed(0)
    return randomize(create_model(name, features_only=True, **NETWORKS.get(name, {})).double().eval())


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    network = random_network(request.param)
    add_padding_hooks(network)
    return network


def pad_images(images, batch, value=7.0):
    """Return a batch of images, padded with a value."""
    maps = torch.full((len(images), 3, *batch), value, dtype=images[0].dtype)
    for target, image in zip(maps, images, strict=True):
        target[:, : image.shape[1], : image.shape[2]] = image
    return maps


def random_images(sizes=SIZES):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, *size, generator=generator, dtype=torch.float64) for size in sizes]


def run_padded(network, batch, value=7.0):
    with padded_batch(SIZES, batch):
        return network(pad_images(random_images(), batch, value))


def valid_part(maps, batch, size):
    """Return the part of the maps that belongs to an image of this size."""
    strides = [side // small for side, small in zip(batch, maps.shape[-2:], strict=True)]
    return maps[..., : -(-size[0] // strides[0]), : -(-size[1] // strides[1])]


def assert_same(actual, expected):
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 1e-10 * expected.abs().max()


def test_maps_of_a_padded_batch_equal_maps_of_single_images(network):
    batched = run_padded(network, (64, 64))
    for i, image in enumerate(random_images()):
        for single, maps in zip(network(image[None]), batched, strict=True):
            assert_same(valid_part(maps, (64, 64), SIZES[i])[i], single[0])


def test_gradients_are_independent_of_padding(network):
    gradients = []
    for side, value in ((64, 7.0), (96, -3.0)):
        inputs = pad_images(random_images(), (side, side), value).requires_grad_()
        with padded_batch(SIZES, (side, side)):
            maps = network(inputs)[-1]
        loss = sum(valid_part(x, (side, side), size).square().sum() for x, size in zip(maps, SIZES, strict=True))
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        actual = torch.autograd.grad(loss, [inputs, *parameters], allow_unused=True)
        assert not actual[0][0, :, SIZES[0][0] :].any()
        gradients.append([actual[0][..., :64, :60], *actual[1:]])
    for gradient, reference in zip(*gradients, strict=True):
        assert (gradient is None) == (reference is None)
        if gradient is not None:
            assert (gradient - reference).abs().max() <= 1e-9 * reference.abs().max()


def test_average_pool_with_count_include_pad_is_preserved():
    pool = nn.AvgPool2d(3, 2, 1)
    add_padding_hooks(pool)
    batched = run_padded(pool, (64, 64))
    for i, image in enumerate(random_images()):
        assert_same(valid_part(batched, (64, 64), SIZES[i])[i], nn.functional.avg_pool2d(image, 3, 2, 1))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_recomputes_with_the_sizes_of_its_batch(use_reentrant, monkeypatch):
    monkeypatch.setattr(timm.layers.config, "_USE_REENTRANT_CKPT", use_reentrant)
    batches = [([(18, 30), (32, 17)], (32, 32)), ([(20, 64), (32, 64)], (32, 64)), ([(33, 40)], (33, 40))]
    gradients = []
    for checkpointing in (False, True, True):
        network = random_network("lambda_resnet50")
        network.set_grad_checkpointing(checkpointing)
        backbone = PyramidBackbone(network, 8).double()
        add_padding_hooks(backbone)
        total = 0
        for sizes, batch in batches if len(gradients) < 2 else reversed(batches):
            with padded_batch(sizes, batch):
                maps = backbone(pad_images(random_images(sizes), batch))
            total = total + maps["2"].square().sum()
        total.backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    for expected, *others in zip(*gradients, strict=True):
        for gradient in others:
            assert_same(gradient, expected)


def test_no_sizes_are_left_after_a_forward_pass():
    network = random_network("mobilenetv3_small_050")
    add_padding_hooks(network)
    images = pad_images(random_images(), (64, 64), 0)
    expected = network(images)[:3]  # the others may be very large
    with pytest.raises(RuntimeError, match="size of tensor"), padded_batch(SIZES[:2], (64, 64)):
        network(images)
    run_padded(network, (64, 64))
    assert all(map(torch.equal, network(images)[:3], expected))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet20_mixer_small", {"mixer": "global_attention"}),
        ("vit_tiny_patch16_224", {}),
        ("resnet18", {"norm_layer": "groupnorm"}),
    ],
)
def test_rejects_networks_with_unsupported_layers(name, options):
    with pytest.raises(InputError, match=r"padding cannot be hidden in [\w.]+, a \w+; use"):
        add_padding_hooks(timm.create_model(name, **options))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_masked_batch_norm_equals_batch_norm_of_valid_positions(layout):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6).double()
    norm.weight.data.uniform_(0.5, 2)
    sizes = [(7, 9), (12, 5), (12, 12)]
    maps = torch.randn(3, 6, 12, 12, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    gradient = torch.randn_like(maps)
    rows = torch.cat([x[:, :height, :width].flatten(1).T for x, (height, width) in zip(maps, sizes, strict=True)])
    gradients = torch.cat([valid_part(x, (12, 12), size).flatten(1).T for x, size in zip(gradient, sizes, strict=True)])
    inputs, reference_norm = [maps, norm.weight, norm.bias], nn.BatchNorm1d(6).double()
    statistics = (reference_norm.running_mean, reference_norm.running_var)
    expected_output = nn.functional.batch_norm(rows, *statistics, *inputs[1:], True)
    expected = torch.autograd.grad(expected_output, inputs, gradients)
    add_padding_hooks(norm)
    with padded_batch(sizes, (12, 12)):
        output = norm(maps)
    assert output.is_contiguous(memory_format=layout)
    assert not output[0, :, 7:].any()
    torch.testing.assert_close((norm.running_mean, norm.running_var), statistics)
    for actual, reference in zip(torch.autograd.grad(output, inputs, gradient), expected, strict=True):
        assert_same(actual, reference)
