"""Baselines for the lambda layer: layers on maps that replace a 3x3 convolution (Tables 3 and 4, Appendix D.2).

Letters in the docstrings: b batch size, h heads, n = H W positions, m context positions, r scope, c channels per head.
"""

import inspect
from collections.abc import Callable

from torch import nn

from lambdanets.layers.baselines.augmented_attention import AugmentedAttention
from lambdanets.layers.baselines.axial_attention import AxialAttention
from lambdanets.layers.baselines.channel_attention import ChannelAttention
from lambdanets.layers.baselines.convolution import Convolution
from lambdanets.layers.baselines.double_attention import DoubleAttention
from lambdanets.layers.baselines.efficient_attention import EfficientAttention
from lambdanets.layers.baselines.global_attention import GlobalAttention
from lambdanets.layers.baselines.local_attention import LocalAttention
from lambdanets.layers.baselines.local_relation import LocalRelation
from lambdanets.layers.baselines.pairwise_attention import PairwiseAttention
from lambdanets.layers.baselines.patchwise_attention import PatchwiseAttention
from lambdanets.layers.baselines.performer import ReluPerformer, SoftmaxPerformer
from lambdanets.layers.lambda_layer import LambdaLayer2d

# All have the signature (dim, dim_out=None, *, stride=1, **options, device=None, dtype=None).
MIXERS: dict[str, Callable[..., nn.Module]] = {
    "convolution": Convolution,
    "channel_attention": ChannelAttention,
    "double_attention": DoubleAttention,
    "efficient_attention": EfficientAttention,
    "augmented_attention": AugmentedAttention,
    "global_attention": GlobalAttention,
    "axial_attention": AxialAttention,
    "local_attention": LocalAttention,
    "local_relation": LocalRelation,
    "pairwise_attention": PairwiseAttention,
    "patchwise_attention": PatchwiseAttention,
    "performer_relu": ReluPerformer,
    "performer_softmax": SoftmaxPerformer,
    "lambda": LambdaLayer2d,
}


def option_names(mixer: str) -> tuple[str, ...]:
    """Return the names of the options that only this mixer has, without stride, device and dtype."""
    arguments = inspect.signature(MIXERS[mixer]).parameters
    return tuple(name for name in arguments if name not in {"dim", "dim_out", "stride", "device", "dtype"})


__all__ = [
    "MIXERS",
    "AugmentedAttention",
    "AxialAttention",
    "ChannelAttention",
    "Convolution",
    "DoubleAttention",
    "EfficientAttention",
    "GlobalAttention",
    "LocalAttention",
    "LocalRelation",
    "PairwiseAttention",
    "PatchwiseAttention",
    "ReluPerformer",
    "SoftmaxPerformer",
    "option_names",
]
