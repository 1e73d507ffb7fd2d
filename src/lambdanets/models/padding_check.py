"""Checks, by running a network, that its features do not depend on padding and that it accepts padded batches.

`padding.py` checks the types of layers, but cannot see operations in `forward`, such as a mean over positions.
"""

import copy

import torch
from torch import Tensor, nn

from lambdanets.errors import InputError, one_line
from lambdanets.models.padding import padded_batch

_SIDE = 64  # of a test image, in pixels
_TOLERANCE = 1e-8  # relative to the maximum of the expected map; rounding errors in float64 are below 1e-12


def check_padding(pyramid: nn.Module, stride: int, name: str) -> None:
    """Raise InputError if the feature maps of an image depend on the amount of padding.

    The check runs on a float64 copy with weights similar to those of a trained network.

    Args:
        pyramid: module that is called with images (b, 3, H, W), and returns maps by name.
        stride: images are padded to multiples of it.
        name: name of the network, for the error message.
    """
    batch_side = max(_SIDE, stride)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs as well
        network = simulate_trained_weights(copy.deepcopy(pyramid))
        images = torch.rand(1, 3, 2 * batch_side, 2 * batch_side, dtype=torch.float64)
        # with some and with more padding; without and with padding
        for size in (_SIDE * 5 // 8, _SIDE * 7 // 8), (batch_side, batch_side):
            with padded_batch([size], images.shape[-2:]):
                more_padded = network(images)
            with padded_batch([size], (batch_side, batch_side)):
                less_padded = network(images[:, :, :batch_side, :batch_side])
            for level, maps in less_padded.items():
                height, width = (-(-side * maps.shape[2] // batch_side) for side in size)
                if not _all_close(more_padded[level][:, :, :height, :width], maps[:, :, :height, :width]):
                    raise InputError(
                        f"padding cannot be hidden in {name}: its maps depend on padding; use another network, or "
                        "hide_padding=False"
                    )


def check_accepts_padded_batches(pyramid: nn.Module, stride: int, name: str) -> None:
    """Raise InputError if a network does not accept all images whose sides are multiples of the stride."""
    height, width = max(_SIDE, stride), 3 * max(_SIDE, stride)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = copy.deepcopy(pyramid).eval()
        try:
            network(torch.rand(1, 3, height, width))
        except Exception as error:  # networks raise many types of exceptions for an unsupported size
            raise InputError(
                f"{name} does not accept images of {height} x {width}, a possible size of a batch: {one_line(error)}; "
                "use another network"
            ) from error


def simulate_trained_weights(network: nn.Module) -> nn.Module:
    """Convert a network to float64 and eval mode in place, give it weights like those of a trained one, and return it.

    At initialization, residual branches output 0 and the statistics of norms are constant, which would hide errors. So
    norms get random weights and biases, and the statistics of random images. Weights that are all 0 become random too.
    """
    network = network.double().train()
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(1)
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
