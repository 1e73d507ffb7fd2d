"""Baselines for the lambda layer (Tables 3 and 4, Appendix D.2): layers on maps that replace a 3x3 convolution."""

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

# Called as (dim, dim_out=None, *, stride=1, **options, device=None, dtype=None).
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


def options_of(mixer: str) -> tuple[str, ...]:
    """The names of a mixer's own options, other than stride, device and dtype."""
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
    "options_of",
]
