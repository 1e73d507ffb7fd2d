"""Convolution and self-attention in parallel, with concatenated channels."""

import torch
from torch import Tensor, nn

from lambdanets.ops.checks import check_sizes
from lambdanets_lab.mixers.mixer import Mixer, conv1x1, join_heads, split_heads
from lambdanets_lab.mixers.relative_attention import RelativeTable, attend_on_grid


class AugmentedAttention(Mixer):
    """Attention-augmented convolution (Bello et al. 2019, Sec. 3.2): y = [conv3x3(x), W_o attention(x)].

    The attention has 2-D relative logits, as in `GlobalAttention`. Queries and keys have dk = h max(20, key_ratio
    dim_out / h) channels each, and values have dv = value_ratio dim_out channels, both rounded to multiples of h. The
    convolution outputs the remaining dim_out - dv channels.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d`; default 1.
        heads: h; default 8.
        key_ratio: kappa of the paper, query channels as a fraction of dim_out; default 0.2, as in its
            ResNets.
        value_ratio: upsilon of the paper, value channels as a fraction of dim_out; default 0.1.
        max_distance: see `GlobalAttention`; default 55.

    Parameters: 9 dim (dim_out - dv) + dim (2 dk + dv) + dv^2 + 2 (2 max_distance + 1) dk / h.
    Cost per image: n times the parameters of the projections and the convolution, plus
    2 h n^2 max(dk / h + H + W, dv / h) multiply-adds.
    Omitted: the downsampling before the attention in the first stage, which saves memory for attention maps.
    Raises ValueError naming the invalid argument.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        heads: int = 8,
        key_ratio: float = 0.2,
        value_ratio: float = 0.1,
        max_distance: int = 55,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim_out, stride)
        check_sizes(heads=heads)
        for name, ratio in (("key_ratio", key_ratio), ("value_ratio", value_ratio)):
            if not 0 < ratio <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {ratio}")
        key_depth = max(20, round(key_ratio * self.dim_out / heads))
        self.heads, self.key_channels = heads, heads * key_depth
        self.value_channels = heads * max(1, round(value_ratio * self.dim_out / heads))
        if self.value_channels >= self.dim_out:
            raise ValueError(
                f"value_ratio must leave channels for the convolution, got {value_ratio}, which means "
                f"{self.value_channels} of {self.dim_out} channels with {heads} heads"
            )
        conv_channels = self.dim_out - self.value_channels
        self.convolution = nn.Conv2d(dim, conv_channels, 3, padding=1, bias=False, device=device, dtype=dtype)
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        self.projection = conv1x1(dim, 2 * self.key_channels + self.value_channels, device, dtype)
        self.output_projection = conv1x1(self.value_channels, self.value_channels, device, dtype)
        self.rows = RelativeTable(max_distance, key_depth, device, dtype)
        self.columns = RelativeTable(max_distance, key_depth, device, dtype)

    def mix(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        projected = self.projection(x).split([self.key_channels, self.key_channels, self.value_channels], dim=1)
        queries, keys, values = (split_heads(part, self.heads) for part in projected)
        attended = attend_on_grid(queries, keys, values, self.rows, self.columns, (height, width))
        return torch.cat([self.convolution(x), self.output_projection(join_heads(attended, height, width))], dim=1)
