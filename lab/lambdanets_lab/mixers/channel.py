"""The 3x3 convolution, which the other layers replace, and squeeze-and-excitation after it."""

from torch import nn

from lambdanets.ops.checks import check_sizes


class Convolution(nn.Conv2d):
    """The 3x3 convolution of a residual block (He et al. 2016), without bias.

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the convolution; default 1.

    Parameters: 9 dim dim_out. Cost per image: 9 n dim dim_out / stride^2 multiply-adds.
    """

    def __init__(self, dim: int, dim_out: int | None = None, *, stride: int = 1) -> None:
        dim_out = dim if dim_out is None else dim_out
        super().__init__(dim, dim_out, 3, stride=stride, padding=1, bias=False)
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


class ChannelAttention(nn.Sequential):
    """A 3x3 convolution z, then y[n,c] = sigmoid(W_2 relu(W_1 mean_n z + b_1) + b_2)[c] z[n,c].

    Squeeze-and-excitation (Hu et al. 2018, Sec. 3), implemented by timm's SEModule. Its authors place it at the end of
    a residual block, which has four times as many channels. `resnet50_mixer` does the same, and the LambdaNetworks
    paper gives the parameter count of that network.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the convolution; default 1.
        squeeze_ratio: ratio of dim_out to the number of hidden channels, which timm rounds to a multiple of 8;
            default 16.

    Parameters: 9 dim dim_out + 2 dim_out s + s + dim_out, with s hidden channels.
    Cost per image: 9 n dim dim_out / stride^2 + 2 dim_out s multiply-adds.
    """

    def __init__(self, dim: int, dim_out: int | None = None, *, stride: int = 1, squeeze_ratio: int = 16) -> None:
        convolution = Convolution(dim, dim_out, stride=stride)
        channels = convolution.out_channels
        super().__init__(convolution, squeeze_excitation(channels, squeeze_ratio))


def squeeze_excitation(channels: int, squeeze_ratio: int = 16) -> nn.Module:
    """Return timm's SEModule, initialized as in timm's ResNets. Raises ValueError if squeeze_ratio is invalid."""
    from timm.layers import SEModule  # not at the top: importing timm takes seconds, and imports this package

    check_sizes(squeeze_ratio=squeeze_ratio)
    module = SEModule(channels, rd_ratio=1 / squeeze_ratio)
    for convolution in (module.fc1, module.fc2):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return module
