"""Baselines for the lambda layer: layers on maps that replace a 3x3 convolution (Tables 3 and 4, Appendix D.2).

Letters in the docstrings: b batch size, h heads, n = H W positions, m context positions, r scope, c channels per head.
"""

import inspect
from collections.abc import Callable

from torch import nn

from lambdanets.layers.lambda_layer import LambdaLayer2d
from lambdanets_lab.mixers.attention import AugmentedAttention, AxialAttention, GlobalAttention
from lambdanets_lab.mixers.channel import ChannelAttention, Convolution
from lambdanets_lab.mixers.linear import DoubleAttention, EfficientAttention, ReluPerformer, SoftmaxPerformer
from lambdanets_lab.mixers.local import LocalRelation, PairwiseAttention, PatchwiseAttention
from lambdanets_lab.mixers.local_attention import LocalAttention

# All have the signature (dim, dim_out=None, *, stride=1, **options).
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
    """Return the names of the options that only this mixer has, without stride."""
    arguments = inspect.signature(MIXERS[mixer]).parameters
    return tuple(name for name in arguments if name not in {"dim", "dim_out", "stride", "device", "dtype"})
