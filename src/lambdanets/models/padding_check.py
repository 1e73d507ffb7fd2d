"""Empirical checks that the features of a network do not depend on padding, and that it takes padded batches.

`padding.py` checks layer types, not operations between layers: a mean over positions in `forward` would pass there.
"""

import copy

import torch
from torch import Tensor, nn

from lambdanets.errors import InputError, one_line

_SIDE = 64  # of an image
_TOLERANCE = 1e-8  # relative to the maximum of a map; rounding in float64 is below 1e-12


def check_padding(pyramid: nn.Module, stride: int, name: str) -> None:
    """Raise InputError if the maps of an image depend on the amount of padding, which is to multiples of the stride.

    pyramid: takes images (b, 3, H, W) and their sizes, and returns maps by name; checked on a float64 copy with
    weights as after training. name: of the network, for the error.
    """
    small, size = max(_SIDE, stride), (_SIDE * 5 // 8, _SIDE * 7 // 8)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = as_trained(copy.deepcopy(pyramid))
        images = torch.rand(1, 3, 2 * small, 2 * small, dtype=torch.float64)
        large_maps = network(images, [size])
        small_maps = network(images[:, :, :small, :small], [size])
    for level, maps in small_maps.items():
        height, width = (-(-side * maps.shape[2] // small) for side in size)
        if not _all_close(large_maps[level][:, :, :height, :width], maps[:, :, :height, :width]):
            raise InputError(
                f"padding cannot be hidden in {name}: its maps depend on padding; choose another "
                "network, or hide_padding=False"
            )


def check_sizes(pyramid: nn.Module, stride: int, name: str) -> None:
    """Raise InputError if a network does not take images with sides that are multiples of the stride."""
    height, width = max(_SIDE, stride), 3 * max(_SIDE, stride)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = copy.deepcopy(pyramid).eval()
        try:
            network(torch.rand(1, 3, height, width), [(height, width)])
        except Exception as error:  # networks raise any exception for an unsupported size
            raise InputError(
                f"{name} cannot take images of {height} x {width}, as batches may have: "
                f"{one_line(error)}; choose another network"
            ) from error


def as_trained(network: nn.Module) -> nn.Module:
    """Convert a network in place to float64 and eval mode, with weights as after training, and return it.

    Norms get random affine parameters, and the statistics of random images, because at initialization residual branches
    are 0 and statistics constant. All-zero weights are randomized too.
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


def _all_close(maps: Tensor, expected: Tensor) -> bool:
    return bool((maps - expected).abs().max() <= _TOLERANCE * expected.abs().max())
