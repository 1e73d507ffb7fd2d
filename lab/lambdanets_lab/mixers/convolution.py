"""The 3x3 convolution, which the other layers replace."""

import torch
from torch import nn


class Convolution(nn.Conv2d):
    """The 3x3 convolution of a residual block (He et al. 2016), without bias.

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the convolution; default 1.

    Parameters: 9 dim dim_out. Cost per image: 9 n dim dim_out / stride^2 multiply-adds.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dim_out = dim if dim_out is None else dim_out
        super().__init__(dim, dim_out, 3, stride=stride, padding=1, bias=False, device=device, dtype=dtype)
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
