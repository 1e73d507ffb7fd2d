"""Self-attention along the height, then along the width."""

import torch
from torch import Tensor, nn

from lambdanets_lab.mixers.mixer import Mixer, check_divides, conv1x1
from lambdanets_lab.mixers.relative_attention import RelativeTable, attend_on_axis


class AxialAttention(Mixer):
    """Axial attention (Ho et al. 2019, Sec. 3; Wang et al. 2020, Axial-DeepLab, Sec. 3.2), height first.

    Attention within each column is followed by attention within each row, with separate projections and tables. The two
    steps together connect all pairs of positions. Each step computes
    y[n,h] = sum_m softmax_m(q[n,h] . (k[m,h] + R[m - n]) / sqrt(c)) v[m,h] over the positions m of the same column or
    row, with c = dim_out / h.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    The arguments are those of `GlobalAttention`.

    Parameters: 3 dim dim_out + 3 dim_out^2 + 2 (2 max_distance + 1) c.
    Cost per image: 3 n dim_out (dim + dim_out) + 2 n (H (dim_out + h H) + W (dim_out + h W)) multiply-adds.
    Omitted from Axial-DeepLab: the positional terms of keys and values, which SDPA does not support, the halved depth
    of the keys, and the batch norms within the layer.
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
        self.along_height = _ColumnAttention(dim, self.dim_out, heads, max_distance, device, dtype)
        self.along_width = _ColumnAttention(self.dim_out, self.dim_out, heads, max_distance, device, dtype)

    def mix(self, x: Tensor) -> Tensor:
        return self.along_width(self.along_height(x).mT).mT


class _ColumnAttention(nn.Module):
    """Attention within each column of (b, dim, H, W)."""

    def __init__(
        self,
        dim: int,
        dim_out: int,
        heads: int,
        max_distance: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.projection = conv1x1(dim, 3 * dim_out, device, dtype)
        self.offsets = RelativeTable(max_distance, dim_out // heads, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.projection(x).unflatten(1, (3, self.heads, -1)).permute(1, 0, 5, 2, 4, 3)  # (3, b, W, h, H, c)
        queries, keys, values = projected.flatten(1, 2).unbind(0)
        output = attend_on_axis(queries, keys, values, self.offsets)
        return output.unflatten(0, (x.shape[0], x.shape[3])).permute(0, 2, 4, 3, 1).flatten(1, 2)
