"""Convolution, then squeeze-and-excitation."""

import torch
from torch import nn

from lambdanets.layers.baselines.convolution import Convolution
from lambdanets.ops.checks import check_sizes


class ChannelAttention(nn.Sequential):
    """A 3x3 convolution z, then y[n,c] = sigmoid(W_2 relu(W_1 mean_n z + b_1) + b_2)[c] z[n,c].

    That is squeeze-and-excitation (Hu et al. 2018, Sec. 3), by timm's SEModule. In a residual block the authors'
    place for it is the end of the block, on four times the channels: there `resnet50_mixer` puts it, and so it is not
    this layer that the paper's row counts.

    Input (b, dim, H, W), output (b, dim_out, ceil(H / stride), ceil(W / stride)); the convolution strides by itself.

    Args: squeeze_ratio: dim_out over the channels between W_1 and W_2, which timm rounds to multiples of 8.

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
    """timm's SEModule, drawn as timm's networks draw it. Raises ValueError unless squeeze_ratio is a whole number."""
    from timm.layers import SEModule  # here, because importing timm takes seconds, and registers models that need us

    check_sizes(squeeze_ratio=squeeze_ratio)
    module = SEModule(channels, rd_ratio=1 / squeeze_ratio, device=device, dtype=dtype)
    for convolution in (module.fc1, module.fc2):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return module
