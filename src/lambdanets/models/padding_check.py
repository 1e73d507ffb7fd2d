"""Whether a network hides its padding indeed, by comparing an image padded a little and much, or takes it at least.

`padding.py` knows layers, not what a network computes between them: one that takes a mean over positions by itself
would pass there.
"""

import copy

import torch
from torch import Tensor, nn

from lambdanets.errors import InputError, one_line

_SIDE = 64  # of an image
_TOLERANCE = 1e-8  # of the largest number in a map; float64 rounds to less than 1e-12 of it


def check_padding(pyramid: nn.Module, stride: int, name: str) -> None:
    """Raise InputError if maps of an image depend on how far it is padded, always to a multiple of the stride.

    pyramid: takes images (b, 3, H, W) and their sizes, and gives maps by name; what is tried is a copy in float64, with
    weights as after some training. name: of the network, for the error.
    """
    near, size = max(_SIDE, stride), (_SIDE * 5 // 8, _SIDE * 7 // 8)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        tried = as_trained(copy.deepcopy(pyramid))
        images = torch.rand(1, 3, 2 * near, 2 * near, dtype=torch.float64)
        much = tried(images, [size])
        little = tried(images[:, :, :near, :near], [size])
    for level, maps in little.items():
        height, width = (-(-side * maps.shape[2] // near) for side in size)
        if not _same(much[level][:, :, :height, :width], maps[:, :, :height, :width]):
            raise InputError(
                f"padding cannot be hidden in {name}: its maps differ where an image is padded; choose another "
                "network, or hide_padding=False"
            )


def check_sizes(pyramid: nn.Module, stride: int, name: str) -> None:
    """Raise InputError if a network cannot take images whose sides are any multiples of the stride, as batches have."""
    height, width = max(_SIDE, stride), 3 * max(_SIDE, stride)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tried = copy.deepcopy(pyramid).eval()
        try:
            tried(torch.rand(1, 3, height, width), [(height, width)])
        except Exception as error:  # whatever a network raises at a size it cannot take
            raise InputError(
                f"{name} cannot take images of {height} x {width}, as batches may have: "
                f"{one_line(error)}; choose another network"
            ) from error


def as_trained(network: nn.Module) -> nn.Module:
    """The same network in float64 and evaluation, as after some training.

    Norms get random scales and biases, and the statistics of random images: at the start residual branches are 0 and
    statistics all alike. Other weights that are 0 throughout become random too.
    """
    network = network.double().train()
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for weight in network.parameters():
            if not weight.any():
                weight.normal_(0, 0.1)
        for norm in norms:
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.1)
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        network(torch.randn(2, 3, _SIDE, _SIDE, dtype=torch.float64))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return network.eval()


def _same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= _TOLERANCE * other.abs().max())
