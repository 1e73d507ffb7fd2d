"""A training step to time, as on docs/frontier.md, measured by this script of commit 0ba90593."""

from torch import Tensor, nn


def train_step(network: nn.Module, images: Tensor) -> None:
    """Forward and backward pass; frees the gradients."""
    network(images).sum().backward()
    network.zero_grad(set_to_none=True)
