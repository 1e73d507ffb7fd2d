"""Networks as after some training: no norm at its start, where residual branches are 0 and statistics all alike."""

import torch
from torch import nn


def perturbed(network: nn.Module) -> nn.Module:
    """The same network in float64 and evaluation, with random scales and biases and a random batch's statistics."""
    network = network.double().train()
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for norm in norms:
            norm.weight.data.uniform_(0.5, 1.5)
            norm.bias.data.normal_(0, 0.1)
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        with torch.no_grad():
            network(torch.randn(2, 3, 64, 64, dtype=torch.float64))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return network.eval()
