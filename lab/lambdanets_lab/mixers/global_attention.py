"""Global self-attention with relative position logits."""

import torch
from torch import Tensor

from lambdanets_lab.mixers.mixer import Mixer, check_divides, conv1x1, join_heads, split_heads
from lambdanets_lab.mixers.relative_attention import RelativeTable, attend_on_grid


class GlobalAttention(Mixer):
    """Multi-head self-attention (Vaswani et al. 2017) with 2-D relative position logits (Bello et al. 2019, Sec. 3).

    y[n,h] = sum_m softmax_m(q[n,h] . (k[m,h] + R_row[m_y - n_y] + R_column[m_x - n_x]) / sqrt(c)) v[m,h] over all
    positions m, with c = dim_out / h. Queries, keys and values are 1x1 projections without bias. All heads share the
    tables R_row and R_column.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d`; default 1.
        heads: h, must divide dim_out; default 8.
        max_distance: largest offset of the tables, in rows and columns; larger offsets are clipped to it (Shaw et al.
            2018). The default 55 covers 56x56, the largest map of a ResNet for images of 224x224.

    Parameters: 3 dim dim_out + 2 (2 max_distance + 1) c.
    Cost per image: 3 n dim dim_out + 2 h n^2 (c + H + W) multiply-adds; memory linear in n with SDPA's fused kernels.
    Omitted: the output projection, because a 1x1 convolution of the residual block follows.
    Raises ValueError naming the invalid argument.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        heads: int = 8,
        max_distance: int = 55,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim_out, stride)
        check_divides("heads", heads, self.dim_out)
        self.heads = heads
        self.projection = conv1x1(dim, 3 * self.dim_out, device, dtype)
        self.rows = RelativeTable(max_distance, self.dim_out // heads, device, dtype)
        self.columns = RelativeTable(max_distance, self.dim_out // heads, device, dtype)

    def mix(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        queries, keys, values = (split_heads(part, self.heads) for part in self.projection(x).chunk(3, dim=1))
        output = attend_on_grid(queries, keys, values, self.rows, self.columns, (height, width))
        return join_heads(output, height, width)
