"""Convolution, then squeeze-and-excitation."""

import torch
from torch import nn

from lambdanets.layers.baselines.convolution import Convolution
from lambdanets.ops.checks import check_sizes


class ChannelAttention(nn.Sequential):
    """A 3x3 convolution z, then y[n,c] = sigmoid(W_2 relu(W_1 mean_n z + b_1) + b_2)[c] z[n,c].

    Squeeze-and-excitation (Hu et al. 2018, Sec. 3), by timm's SEModule. The authors place it at the end of a residual
    block, on four times the channels, as `resnet50_mixer` does; the paper's row counts that network, not this layer.

    Input (b, dim, H, W), output (b, dim_out, ceil(H / stride), ceil(W / stride)); the convolution is strided.

    Args: squeeze_ratio: dim_out / hidden channels, which timm rounds to multiples of 8.

    Parameters: 9 dim dim_out + 2 dim_out s + s + dim_out, s = dim_out / squeeze_ratio as rounded.
    Cost per image: 9 n dim dim_out / stride^2 + 2 dim_out s multiply-adds.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        squeeze_ratio: int = 16,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        convolution = Convolution(dim, dim_out, stride=stride, device=device, dtype=dtype)
        channels = convolution.out_channels
        super().__init__(convolution, squeeze_excitation(channels, squeeze_ratio, device=device, dtype=dtype))


def squeeze_excitation(
    channels: int,
    squeeze_ratio: int = 16,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """timm's SEModule with the initialization of timm's networks. Raises ValueError for an invalid squeeze_ratio."""
    from timm.layers import SEModule  # lazily: importing timm takes seconds, and imports our models

    check_sizes(squeeze_ratio=squeeze_ratio)
    module = SEModule(channels, rd_ratio=1 / squeeze_ratio, device=device, dtype=dtype)
    for convolution in (module.fc1, module.fc2):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return module
