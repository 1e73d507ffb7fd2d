"""The base class of the baselines, and functions for their 1x1 projections and heads."""

import torch
from torch import Tensor, fx, nn

from lambdanets.layers.module import Layer
from lambdanets.layers.pooling import average_pool
from lambdanets.ops.checks import check_sizes


class Mixer(Layer):
    """Base class of the baselines.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)), in the memory format
    of the input. Subclasses implement `mix` at the input resolution.

    Args of all baselines:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d` (Sec. F.2 of the paper); default 1.

    Args of some:
        heads, share: divisors of dim_out.
        scope: odd side of a neighborhood, in positions.

    Raises ValueError naming the invalid argument.
    """

    def __init__(
        self, dim: int, dim_out: int | None, stride: int, *, heads: int = 1, share: int = 1, scope: int = 1
    ) -> None:
        super().__init__()
        dim_out = dim if dim_out is None else dim_out
        check_sizes(dim=dim, dim_out=dim_out, stride=stride, heads=heads, share=share, scope=scope)
        for name, divisor in (("heads", heads), ("share", share)):
            if dim_out % divisor:
                raise ValueError(f"{name} must divide dim_out = {dim_out}, got {divisor}")
        if scope % 2 == 0:
            raise ValueError(f"scope must be odd, got {scope}")
        self.dim, self.dim_out, self.stride, self.heads, self.scope = dim, dim_out, stride, heads, scope
        self.pool = average_pool(stride, 2) if stride > 1 else nn.Identity()

    def mix(self, x: Tensor) -> Tensor:
        """Return (b, dim_out, H, W) for x (b, dim, H, W)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, fx.Proxy):
            return self.fx_call(x)
        if x.ndim != 4 or x.shape[1] != self.dim:
            raise ValueError(f"x must be (b, dim = {self.dim}, height, width), got shape {tuple(x.shape)}")
        output = self.pool(self.mix(x))
        channels_last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        return output.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

    def extra_repr(self) -> str:
        sizes = [f"{name}={size}" for name in ("stride", "heads", "scope") if (size := getattr(self, name)) > 1]
        return ", ".join([str(self.dim), str(self.dim_out), *sizes])


def conv1x1(dim: int, dim_out: int) -> nn.Conv2d:
    """Return a 1x1 convolution without bias. Its weights have std dim^-1/2, which preserves the variance of inputs."""
    convolution = nn.Conv2d(dim, dim_out, 1, bias=False)
    nn.init.normal_(convolution.weight, std=dim**-0.5)
    return convolution


def split_heads(maps: Tensor, heads: int) -> Tensor:
    """Convert maps (b, h c, H, W) to rows (b, h, n, c)."""
    return maps.flatten(2).unflatten(1, (heads, -1)).mT


def join_heads(rows: Tensor, height: int, width: int) -> Tensor:
    """Convert rows (b, h, n, c) to maps (b, h c, H, W); the inverse of `split_heads`."""
    return rows.mT.flatten(1, 2).unflatten(2, (height, width))
