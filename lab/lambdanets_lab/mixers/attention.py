"""Attention with relative position logits for rows and columns, without a bias tensor of all pairs.

logits[n,m] = scale * q[n] . (k[m] + R_row[m_y - n_y] + R_column[m_x - n_x])     (Shaw et al. 2018; Bello et al. 2019)

The position term equals a[n, m_y] + c[n, m_x], with a[n, y] = q[n] . R_row[y - n_y] and c[n, x] = q[n] .
R_column[x - n_x]. It becomes part of the dot product by concatenating a and c to the queries, and the one-hot encodings
of row and column to the keys: scale * [q, a, c][n] . [k, onehot(m_y), onehot(m_x)]. This is standard attention with
H + W more channels, and the fused kernels of scaled_dot_product_attention (SDPA) need memory linear in n for it.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.ops.checks import check_sizes
from lambdanets.ops.tables import pairwise_embeddings
from lambdanets_lab.mixers.mixer import Mixer, conv1x1, join_heads, split_heads


class RelativeTable(nn.Module):
    """Embeddings R[m - n] along one axis, a table (2 max_distance + 1, depth) initialized with std depth^-1/2.

    The table works for any side: larger offsets are clipped to max_distance (Shaw et al. 2018, Sec. 3.2).
    """

    def __init__(self, max_distance: int, depth: int) -> None:
        super().__init__()
        check_sizes(max_distance=max_distance)
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(2 * max_distance + 1, depth))
        nn.init.normal_(self.table, std=depth**-0.5)

    def forward(self, side: int) -> Tensor:
        """Return R[m - n] as (n, depth, m), for n and m from 0 to side - 1."""
        table: Tensor = self.table
        missing = side - 1 - self.max_distance
        if missing > 0:
            table = torch.cat((table[:1].expand(missing, -1), table, table[-1:].expand(missing, -1)))
        return pairwise_embeddings(table.unsqueeze(-1), (side,), 1).squeeze(2)


def attend_on_grid(
    queries: Tensor, keys: Tensor, values: Tensor, rows: RelativeTable, columns: RelativeTable, grid: tuple[int, int]
) -> Tensor:
    """Return the attention output (b, h, n, v) on a grid (H, W), for queries, keys (b, h, n, c), values (b, h, n, v).

    Cost: 2 b h n^2 max(c + H + W, v) multiply-adds.
    """
    maps = queries.unflatten(2, grid)
    row_logits = torch.einsum("bhyxc,ycj->bhyxj", maps, rows(grid[0])).flatten(2, 3)
    column_logits = torch.einsum("bhyxc,xcj->bhyxj", maps, columns(grid[1])).flatten(2, 3)
    return attend(queries, keys, values, [row_logits, column_logits])


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, logits: Sequence[Tensor], mask: Tensor | None = None
) -> Tensor:
    """Call SDPA with queries [q, a, c] (.., n, depth) and keys [k, onehot(m_y), onehot(m_x)] (.., m, depth).

    logits: a (.., n, H) and c (.., n, W), or one of them, whose sides are those of the grid of the keys. Queries, keys
    and values are zero-padded to equal depths: the fused kernels require this and, in 16-bit dtypes with a mask,
    multiples of 8.
    """
    scale, grid = queries.shape[-1] ** -0.5, [part.shape[-1] for part in logits]
    coordinates = torch.cartesian_prod(*(torch.arange(side, device=keys.device) for side in grid)).view(-1, len(grid))
    one_hot = torch.cat([F.one_hot(coordinates[:, axis], side) for axis, side in enumerate(grid)], dim=1)
    queries = torch.cat([queries, *(part.to(queries.dtype) for part in logits)], dim=-1)
    keys = torch.cat([keys, one_hot.to(keys.dtype).expand(*keys.shape[:-1], -1)], dim=-1)
    value_depth, depth = values.shape[-1], -(-max(queries.shape[-1], values.shape[-1]) // 8) * 8
    queries, keys, values = (F.pad(x, (0, depth - x.shape[-1])) for x in (queries, keys, values))
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)[..., :value_depth]


class GlobalAttention(Mixer):
    """Multi-head self-attention (Vaswani et al. 2017) with 2-D relative position logits (Bello et al. 2019, Sec. 3).

    y[n,h] = sum_m softmax_m(q[n,h] . (k[m,h] + R_row[m_y - n_y] + R_column[m_x - n_x]) / sqrt(c)) v[m,h] over all
    positions m, with c = dim_out / h. Queries, keys and values are 1x1 projections without bias. All heads share the
    tables R_row and R_column.

    Args:
        heads: h, must divide dim_out; default 8.
        max_distance: largest offset of the tables, in rows and columns; larger offsets are clipped to it (Shaw et al.
            2018). The default 55 covers 56x56, the largest map of a ResNet for images of 224x224.

    Parameters: 3 dim dim_out + 2 (2 max_distance + 1) c.
    Cost per image: 3 n dim dim_out + 2 h n^2 (c + H + W) multiply-adds; memory linear in n with SDPA's fused kernels.
    Omitted: the output projection, because a 1x1 convolution of the residual block follows.
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, *, stride: int = 1, heads: int = 8, max_distance: int = 55
    ) -> None:
        super().__init__(dim, dim_out, stride, heads=heads)
        self.projection = conv1x1(dim, 3 * self.dim_out)
        self.rows = RelativeTable(max_distance, self.dim_out // heads)
        self.columns = RelativeTable(max_distance, self.dim_out // heads)

    def mix(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        queries, keys, values = (split_heads(part, self.heads) for part in self.projection(x).chunk(3, dim=1))
        output = attend_on_grid(queries, keys, values, self.rows, self.columns, (height, width))
        return join_heads(output, height, width)


class AxialAttention(Mixer):
    """Axial attention (Ho et al. 2019, Sec. 3; Wang et al. 2020, Axial-DeepLab, Sec. 3.2), height first.

    Attention within each column is followed by attention within each row, with separate projections and tables. The two
    steps together connect all pairs of positions. Each step computes
    y[n,h] = sum_m softmax_m(q[n,h] . (k[m,h] + R[m - n]) / sqrt(c)) v[m,h] over the positions m of the same column or
    row, with c = dim_out / h.

    The arguments are those of `GlobalAttention`.

    Parameters: 3 dim dim_out + 3 dim_out^2 + 2 (2 max_distance + 1) c.
    Cost per image: 3 n dim_out (dim + dim_out) + 2 n (H (dim_out + h H) + W (dim_out + h W)) multiply-adds.
    Omitted from Axial-DeepLab: the positional terms of keys and values, which SDPA does not support, the halved depth
    of the keys, and the batch norms within the layer.
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, *, stride: int = 1, heads: int = 8, max_distance: int = 55
    ) -> None:
        super().__init__(dim, dim_out, stride, heads=heads)
        self.along_height = _ColumnAttention(dim, self.dim_out, heads, max_distance)
        self.along_width = _ColumnAttention(self.dim_out, self.dim_out, heads, max_distance)

    def mix(self, x: Tensor) -> Tensor:
        return self.along_width(self.along_height(x).mT).mT


class _ColumnAttention(nn.Module):
    """Attention within each column of (b, dim, H, W)."""

    def __init__(self, dim: int, dim_out: int, heads: int, max_distance: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection = conv1x1(dim, 3 * dim_out)
        self.offsets = RelativeTable(max_distance, dim_out // heads)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.projection(x).unflatten(1, (3, self.heads, -1)).permute(1, 0, 5, 2, 4, 3)  # (3, b, W, h, H, c)
        queries, keys, values = projected.flatten(1, 2).unbind(0)
        logits = torch.einsum("bhnc,ncm->bhnm", queries, self.offsets(x.shape[2]))
        output = attend(queries, keys, values, [logits])
        return output.unflatten(0, (x.shape[0], x.shape[3])).permute(0, 2, 4, 3, 1).flatten(1, 2)


class AugmentedAttention(Mixer):
    """Attention-augmented convolution (Bello et al. 2019, Sec. 3.2): y = [conv3x3(x), W_o attention(x)].

    The attention has 2-D relative logits, as in `GlobalAttention`. Queries and keys have dk = h max(20, key_ratio
    dim_out / h) channels each, and values have dv = value_ratio dim_out channels, both rounded to multiples of h. The
    convolution outputs the remaining dim_out - dv channels.

    Args:
        heads: h; default 8.
        key_ratio: kappa of the paper, query channels as a fraction of dim_out; default 0.2, as in its
            ResNets.
        value_ratio: upsilon of the paper, value channels as a fraction of dim_out; default 0.1.
        max_distance: see `GlobalAttention`; default 55.

    Parameters: 9 dim (dim_out - dv) + dim (2 dk + dv) + dv^2 + 2 (2 max_distance + 1) dk / h.
    Cost per image: n times the parameters of the projections and the convolution, plus
    2 h n^2 max(dk / h + H + W, dv / h) multiply-adds.
    Omitted: the downsampling before the attention in the first stage, which saves memory for attention maps.
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
        self.convolution = nn.Conv2d(dim, conv_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        self.projection = conv1x1(dim, 2 * self.key_channels + self.value_channels)
        self.output_projection = conv1x1(self.value_channels, self.value_channels)
        self.rows = RelativeTable(max_distance, key_depth)
        self.columns = RelativeTable(max_distance, key_depth)

    def mix(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        projected = self.projection(x).split([self.key_channels, self.key_channels, self.value_channels], dim=1)
        queries, keys, values = (split_heads(part, self.heads) for part in projected)
        attended = attend_on_grid(queries, keys, values, self.rows, self.columns, (height, width))
        return torch.cat([self.convolution(x), self.output_projection(join_heads(attended, height, width))], dim=1)
