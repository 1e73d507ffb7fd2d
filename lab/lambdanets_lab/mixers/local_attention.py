"""Local self-attention, computed in tiles of queries with their halos."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.ops.tracing import unfold
from lambdanets_lab.mixers.attention import attend
from lambdanets_lab.mixers.mixer import Mixer, conv1x1

TILE = 8  # side of a tile; larger tiles compute more masked pairs, smaller tiles copy more overlapping halos


class LocalAttention(Mixer):
    """Stand-alone self-attention (Ramachandran et al. 2019, Secs. 3.1 and 3.2) over a scope r x r.

    y[n,h] = sum_m softmax_m(q[n,h] . (k[m,h] + [R_row[h, m_y - n_y], R_column[h, m_x - n_x]]) / sqrt(c)) v[m,h] over
    the positions m at most r // 2 rows and columns away, with c = dim_out / h. R_row and R_column have c / 2 channels
    each.

    The implementation calls SDPA once. Each tile of 8x8 queries attends to the tile and a halo of r // 2 positions
    around it, with a mask. The position term is part of the dot product (see `attention.py`), so there is no bias
    tensor of all pairs.

    Args:
        heads: h, must divide dim_out, with an even c; default 8.
        scope: r, the odd side of the neighborhood, in positions; default 7.

    Parameters: 3 dim dim_out + r dim_out. Cost per image: 3 n dim dim_out + 2 h n (7 + r)^2 (c + 2 (7 + r))
    multiply-adds; memory n (1 + (r - 1) / 8)^2 h (c + 2 (7 + r)) for the tiles with halos.
    Unlike in the original, logits are divided by sqrt(c).
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, *, stride: int = 1, heads: int = 8, scope: int = 7
    ) -> None:
        super().__init__(dim, dim_out, stride, heads=heads, scope=scope)
        depth = self.dim_out // heads
        if depth % 2:
            raise ValueError(f"heads must have an even number of channels, got {self.dim_out} / {heads} = {depth}")
        self.projection = conv1x1(dim, 3 * self.dim_out)
        self.row_table = nn.Parameter(torch.empty(heads, scope, depth // 2))
        self.column_table = nn.Parameter(torch.empty(heads, scope, depth // 2))
        for table in (self.row_table, self.column_table):
            nn.init.normal_(table, std=depth**-0.5)

    def mix(self, x: Tensor) -> Tensor:
        batch, (height, width), halo = x.shape[0], x.shape[2:], self.scope // 2
        tile = min(TILE, height), min(TILE, width)
        num_tiles = -(-height // tile[0]), -(-width // tile[1])
        below, right = num_tiles[0] * tile[0] - height, num_tiles[1] * tile[1] - width
        queries, keys, values = self.projection(x).unflatten(1, (3, self.heads, -1)).unbind(1)

        queries = F.pad(queries, (0, right, 0, below)).flatten(0, 1)  # (b h, c, ..)
        queries = queries.unflatten(3, (num_tiles[1], tile[1])).unflatten(2, (num_tiles[0], tile[0]))
        queries = queries.permute(0, 2, 4, 3, 5, 1).flatten(1, 2)  # (b h, tiles, y, x, c)
        row_queries, column_queries = queries.unflatten(0, (batch, self.heads)).chunk(2, dim=-1)
        row_table, column_table = _expand_table(self.row_table, tile[0]), _expand_table(self.column_table, tile[1])
        row_logits = torch.einsum("bhtyxc,hycj->bhtyxj", row_queries, row_table).flatten(0, 1)
        column_logits = torch.einsum("bhtyxc,hxcj->bhtyxj", column_queries, column_table).flatten(0, 1)
        window = tile[0] + 2 * halo, tile[1] + 2 * halo

        def extract_windows(maps: Tensor) -> Tensor:
            maps = F.pad(maps, (halo, halo + right, halo, halo + below)).flatten(0, 1)
            maps = unfold(unfold(maps, 2, num_tiles[0], window[0], tile[0]), 3, num_tiles[1], window[1], tile[1])
            return maps.permute(0, 2, 3, 4, 5, 1).flatten(3, 4).flatten(1, 2)  # (b h, tiles, m, c)

        output = attend(
            queries.flatten(2, 3),
            extract_windows(keys),
            extract_windows(values),
            [row_logits.flatten(2, 3), column_logits.flatten(2, 3)],
            self._mask((height, width), tile, num_tiles, x.device),
        )
        output = output.unflatten(2, tile).unflatten(1, num_tiles).permute(0, 5, 1, 3, 2, 4)
        output = output.flatten(4, 5).flatten(2, 3)[..., :height, :width]
        return output.unflatten(0, (batch, self.heads)).flatten(1, 2)

    def _mask(
        self, grid: tuple[int, int], tile: tuple[int, int], num_tiles: tuple[int, int], device: torch.device
    ) -> Tensor:
        """Return a bool mask (1, tiles, n, m), True if the key is within the scope of the query and on the map.

        It has four dimensions because SDPA on CPU otherwise does not use its fused kernel.
        """
        halo, axis_masks = self.scope // 2, []
        for side, length, count in zip(grid, tile, num_tiles, strict=True):
            first = torch.arange(count, device=device)[:, None, None] * length
            query = first + torch.arange(length, device=device)[:, None]
            key = first + torch.arange(length + 2 * halo, device=device) - halo
            on_map = (key >= 0) & (key < side)
            # queries beyond the map are cropped later, but need a key: otherwise their softmax is 0 / 0
            axis_masks.append(((key - query).abs() <= halo) & (on_map | (query >= side)))
        rows, columns = axis_masks
        allowed = rows[:, None, :, None, :, None] & columns[None, :, None, :, None, :]
        return allowed.flatten(4).flatten(2, 3).flatten(0, 1).unsqueeze(0)


def _expand_table(table: Tensor, tile: int) -> Tensor:
    """Expand a table (h, r, c) to (h, n, c, m), for n in a tile and m in the tile with its halo; 0 beyond the scope."""
    padded = F.pad(table, (0, 0, tile - 1, tile - 1))
    return unfold(padded, 1, tile, table.shape[1] + tile - 1).flip(1)
