"""Convolution and self-attention in parallel, with concatenated channels."""

import torch
from torch import Tensor, nn

from lambdanets.layers.baselines.mixer import Mixer, join_heads, project, split_heads
from lambdanets.layers.baselines.relative_attention import RelativeTable, attend_on_grid
from lambdanets.ops.checks import check_sizes


class AugmentedAttention(Mixer):
    """Attention-augmented convolution (Bello et al. 2019, Sec. 3.2): y = [conv3x3(x), W_o attention(x)].

    The attention is that of `GlobalAttention`, with 2-D relative logits, but dk = h max(20, key_ratio dim_out / h)
    channels of queries and of keys and dv = value_ratio dim_out channels of values, both rounded to multiples of h; the
    convolution outputs the other dim_out - dv channels.

    Input (b, dim, H, W), output (b, dim_out, ceil(H / stride), ceil(W / stride)), any H and W.

    Args:
        heads: h. key_ratio, value_ratio: kappa and upsilon, 0.2 and 0.1 in the paper's ResNets (its Sec. 4.2).
        max_distance, stride: as in `GlobalAttention`.

    Parameters: 9 dim (dim_out - dv) + dim (2 dk + dv) + dv^2 + 2 (2 max_distance + 1) dk / h.
    Cost per image: n times the parameters of the convolutions + 2 h n^2 max(dk / h + H + W, dv / h) multiply-adds.
    Omitted: downsampling before the attention in the first stage, which saves memory for attention maps.
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
        self.heads, self.keys = heads, heads * key_depth
        self.values = heads * max(1, round(value_ratio * self.dim_out / heads))
        if self.values >= self.dim_out:
            raise ValueError(
                f"value_ratio must leave channels to the convolution, got {value_ratio}, which is {self.values} of "
                f"{self.dim_out} channels for {heads} heads"
            )
        convolved = self.dim_out - self.values
        self.convolution = nn.Conv2d(dim, convolved, 3, padding=1, bias=False, device=device, dtype=dtype)
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        self.projection = project(dim, 2 * self.keys + self.values, device, dtype)
        self.output_projection = project(self.values, self.values, device, dtype)
        self.rows = RelativeTable(max_distance, key_depth, device, dtype)
        self.columns = RelativeTable(max_distance, key_depth, device, dtype)

    def mix(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        projected = self.projection(x).split([self.keys, self.keys, self.values], dim=1)
        queries, keys, values = (split_heads(part, self.heads) for part in projected)
        attended = attend_on_grid(queries, keys, values, self.rows, self.columns, (height, width))
        return torch.cat([self.convolution(x), self.output_projection(join_heads(attended, height, width))], dim=1)
