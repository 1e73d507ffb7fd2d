"""Attention with relative position logits for rows and columns, without a bias tensor of all pairs.

logits[n,m] = scale * q[n] . (k[m] + R_row[m_y - n_y] + R_column[m_x - n_x])     (Shaw et al. 2018; Bello et al. 2019)

The position term equals a[n, m_y] + c[n, m_x], with a[n, y] = q[n] . R_row[y - n_y] and c[n, x] = q[n] .
R_column[x - n_x]. It becomes part of the dot product by concatenating a and c to the queries, and the one-hot encodings
of row and column to the keys: scale * [q, a, c][n] . [k, onehot(m_y), onehot(m_x)]. This is standard attention with
H + W more channels, and the fused kernels of scaled_dot_product_attention (SDPA) need memory linear in n for it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.ops.checks import check_sizes
from lambdanets.ops.tracing import unfold


class RelativeTable(nn.Module):
    """Embeddings R[m - n] along one axis, a table (2 max_distance + 1, depth) initialized with std depth^-1/2.

    The table works for any side: larger offsets are clipped to max_distance (Shaw et al. 2018, Sec. 3.2).
    """

    def __init__(
        self, max_distance: int, depth: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        check_sizes(max_distance=max_distance)
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(2 * max_distance + 1, depth, device=device, dtype=dtype))
        nn.init.normal_(self.table, std=depth**-0.5)

    def forward(self, side: int) -> Tensor:
        """Return R[m - n] as (n, depth, m), for n and m from 0 to side - 1."""
        missing = side - 1 - self.max_distance
        if missing > 0:
            ends = (self.table[:1].expand(missing, -1), self.table, self.table[-1:].expand(missing, -1))
            return relative_to_absolute(torch.cat(ends), side)
        return relative_to_absolute(self.table.narrow(0, -missing, 2 * side - 1), side)


def relative_to_absolute(table: Tensor, num_queries: int) -> Tensor:
    """Return R[m - n] (n, depth, m), from a table (n + m - 1, depth) of embeddings for the offsets 1 - n to m - 1."""
    return unfold(table, 0, num_queries, table.shape[0] - num_queries + 1).flip(0)


def attend_on_axis(queries: Tensor, keys: Tensor, values: Tensor, table: RelativeTable) -> Tensor:
    """Return the attention output (b, h, n, c) along one axis, for queries, keys and values (b, h, n, c).

    Cost: b h n^2 (2 c + 2 n) multiply-adds.
    """
    side, scale = queries.shape[2], queries.shape[-1] ** -0.5
    logits = torch.einsum("bhnc,ncm->bhnm", queries, table(side))
    return attend(extend_queries(queries, logits), extend_keys(keys, (side,)), values, scale)


def attend_on_grid(
    queries: Tensor, keys: Tensor, values: Tensor, rows: RelativeTable, columns: RelativeTable, grid: tuple[int, int]
) -> Tensor:
    """Return the attention output (b, h, n, v) on a grid (H, W), for queries, keys (b, h, n, c), values (b, h, n, v).

    Cost: 2 b h n^2 max(c + H + W, v) multiply-adds.
    """
    maps = queries.unflatten(2, grid)
    row_logits = torch.einsum("bhyxc,ycj->bhyxj", maps, rows(grid[0])).flatten(2, 3)
    column_logits = torch.einsum("bhyxc,xcj->bhyxj", maps, columns(grid[1])).flatten(2, 3)
    scale = queries.shape[-1] ** -0.5
    return attend(extend_queries(queries, row_logits, column_logits), extend_keys(keys, grid), values, scale)


def extend_queries(queries: Tensor, *logits: Tensor) -> Tensor:
    """Return [q, a, c][n], in the dtype of the queries."""
    return torch.cat([queries, *(part.to(queries.dtype) for part in logits)], dim=-1)


def extend_keys(keys: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return [k, onehot(m_y), onehot(m_x)] for keys (.., m, c) on a grid with one or two sides."""
    coordinates = torch.cartesian_prod(*(torch.arange(side, device=keys.device) for side in grid)).view(-1, len(grid))
    one_hot = [F.one_hot(coordinates[:, axis], side) for axis, side in enumerate(grid)]
    return torch.cat([keys, torch.cat(one_hot, dim=1).to(keys.dtype).expand(*keys.shape[:-1], -1)], dim=-1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Call SDPA with queries, keys and values zero-padded to equal depths.

    The fused kernels require equal depths and, in 16-bit dtypes with a mask, multiples of 8.
    """
    value_depth, depth = values.shape[-1], -(-max(queries.shape[-1], values.shape[-1]) // 8) * 8
    queries, keys, values = (F.pad(x, (0, depth - x.shape[-1])) for x in (queries, keys, values))
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)[..., :value_depth]
