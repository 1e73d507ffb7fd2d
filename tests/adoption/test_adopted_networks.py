"""Whole networks of timm, adopted."""

import copy

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from all_pairs import in_turn
from lambdanets import adopt, create_model
from lambdanets_lab.benchmark.measurement import relative_error

pytestmark = pytest.mark.usefixtures("small_lambda_resnet26t")
# (sides of the images, number of lambda layers)
NETWORKS = {
    "lambda_resnet26t": ((64, 96), 3),
    "lambda_resnet26rpt_256": ((64, 96), 3),
    "lamhalobotnet50ts_256": ((128, 128), 2),
    "lambda_resnet50ts": ((75, 53), 5),  # odd sides of feature maps
}


def original_and_adopted(name):
    """The network and its adopted copy, in float64, with updated running statistics."""
    size, count = NETWORKS[name]
    torch.manual_seed(0)
    sizes = {"img_size": size} if name.endswith("256") else {}
    theirs = timm.create_model(name, zero_init_last=False, **sizes).double()
    update_statistics(theirs, images(size))
    ours = copy.deepcopy(theirs)
    assert len(adopt(ours)) == count
    return theirs, ours


def update_statistics(network, x):
    """Set the running statistics to the statistics of one batch.

    With the default ones (mean 0, variance 1), the outputs of a deep, randomly initialized network overflow in eval
    mode.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(x)


def images(size, batch=2, seed=1):
    return torch.randn(batch, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "training"), in_turn(NETWORKS, (False, True)))
def test_adopted_network_equals_the_original(name, training):
    results = []
    for network in original_and_adopted(name):
        x = images(NETWORKS[name][0]).requires_grad_()
        output = network.train(training)(x)
        (gradient,) = torch.autograd.grad(output.square().sum(), x)
        results.append((output.detach(), gradient))
    for expected, actual in zip(*results, strict=True):
        assert relative_error(actual, expected) < 1e-10


def test_adopted_weights_load_into_a_network_of_features(tmp_path):
    _, ours = original_and_adopted("lambda_resnet26t")
    save_file(ours.float().state_dict(), tmp_path / "adopted.safetensors")
    features = create_model("timm/lambda_resnet26t", tmp_path / "adopted.safetensors", features_only=True).eval()
    x = images((64, 96)).float()
    with torch.no_grad():
        assert relative_error(features(x)[-1], ours.eval().forward_features(x)) < 1e-6


# image sizes at which timm's network raises; none for lambda_resnet50ts, which has no strided lambda layer
@pytest.mark.parametrize(("name", "size"), [("lambda_resnet26t", (80, 112)), ("lambda_resnet26rpt_256", (80, 64))])
def test_adopted_network_takes_sizes_at_which_timm_raises(name, size):
    theirs, ours = original_and_adopted(name)
    x = images(size)
    with torch.no_grad():
        with pytest.raises(RuntimeError):
            theirs.eval()(x)
        update_statistics(ours, x)
        expected = ours.eval()(x)
        assert expected.isfinite().all()
        last = ours.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
        assert relative_error(last, expected) < 1e-10
