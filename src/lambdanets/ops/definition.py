"""Reference implementation of the lambda layer's operation, against which all fast implementations are tested.

It is slow and supports all floating dtypes. Letters are as in the paper (Bello, ICLR 2021):
b batch, h heads, n query positions, m context positions, k query depth, v value depth, u intra-depth,
r scope, E position embeddings of all pairs (n, m), R table of relative position embeddings.

The einsum strings in the pseudo-code of Figs. 3 and 8 have typos; the code below follows Eqs. 1 and 2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def lambda_interaction(
    queries: Tensor,
    keys: Tensor | None,
    values: Tensor,
    embeddings: Tensor | None,
    *,
    mask: Tensor | None = None,
    multi_head: bool = False,
    normalize_keys: str | None = "softmax",
) -> Tensor:
    """y[b,h,n,:] = lambda[b,n]^T q[b,h,n] with lambda[b,n] = sum_m (kbar[b,n,m] + e[n,m]) v[b,m]^T  (Eqs. 1, 2).

    queries: (b, h, n, k). keys: (b, m, k[, u]), not yet normalized, or None to omit the content term.
    values: (b, m, v[, u]). embeddings: (n, m, k[, u]), (b, n, m, k[, u]) for different embeddings per example, or None
    to omit the position term. If values have the axis u, keys and embeddings have it too; it is summed over (Sec. C.4).
    mask: (n, m) or (b, n, m), True where n and m interact. Sums and the normalization of the keys to kbar are over the
    context of each query (Sec. C.2). An empty context gives 0.
    multi_head: one lambda per head (Sec. C.3), with keys (b, h, m, k[, u]), values (b, h, m, v[, u]) and embeddings
    (h, n, m, k[, u]) or (b, h, n, m, k[, u]). Returns (b, h, n, v).
    """
    if values.ndim == (4 if multi_head else 3):
        values = values[..., None]
        keys = None if keys is None else keys[..., None]
        embeddings = None if embeddings is None else embeddings[..., None]
    if not multi_head:  # one lambda, whose axis h of size 1 einsum expands
        values = values[:, None]
        keys = None if keys is None else keys[:, None]
        embeddings = None if embeddings is None else embeddings.unsqueeze(-5)
    pairs = (queries.shape[0], queries.shape[2], values.shape[2])  # b, n, m
    allowed = torch.ones(pairs, dtype=torch.bool, device=queries.device) if mask is None else mask.expand(pairs)
    allowed = allowed[:, None, :, :, None, None]  # (b, h, n, m, k, u)
    output = queries.new_zeros(*queries.shape[:3], values.shape[3])
    if keys is not None:
        normalized = _normalize_per_query(keys[:, :, None], allowed, normalize_keys)
        content_lambdas = torch.einsum("bhnmku,bhmvu->bhnkv", normalized, values)
        output = output + torch.einsum("bhnk,bhnkv->bhnv", queries, content_lambdas)
    if embeddings is not None:
        position_lambdas = torch.einsum("bhnmku,bhmvu->bhnkv", embeddings * allowed, values)
        output = output + torch.einsum("bhnk,bhnkv->bhnv", queries, position_lambdas)
    return output


def _normalize_per_query(keys: Tensor, allowed: Tensor, normalize_keys: str | None) -> Tensor:
    """Return kbar (b, h, n, m, k, u): keys (b, h, 1, m, k, u) normalized over the context of each query (Table 11)."""
    if normalize_keys == "softmax":
        return keys.masked_fill(~allowed, -torch.inf).softmax(dim=-3).nan_to_num()
    keys = keys * allowed
    if normalize_keys == "l2":
        squares = keys.square().sum(dim=-3, keepdim=True)
        return keys / torch.where(squares > 0, squares, 1).sqrt()
    assert normalize_keys is None
    return keys


def position_interaction(
    queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int], *, dilation: int = 1, causal: bool = False
) -> Tensor:
    """Return the position term of Eq. 2 (b, h, n, v) with relative embeddings e[n,m] = R[m - n] (Sec. 3.3).

    queries: (b, h, n, k) with n = prod(grid). table: (r_1..r_D, k[, u]). values: (b, n, v[, u]).
    """
    embeddings = relative_embeddings(table, grid, dilation=dilation, causal=causal)
    return lambda_interaction(queries, None, values, embeddings)


def relative_embeddings(
    table: Tensor,
    grid: Sequence[int],
    *,
    dilation: int = 1,
    causal: bool = False,
    context_grid: Sequence[int] | None = None,
) -> Tensor:
    """Return e[n,m] = R[center + (m - n) / dilation] (n, m, k[, u]) from the table R (r_1..r_D, k[, u]).

    It is zero where the offset is outside the table or not a multiple of the dilation and, if causal, where m comes
    after n in row-major order. context_grid: that of m, with the same origin; None if both grids are equal.
    """
    sides = (grid, grid if context_grid is None else context_grid)
    queries, context = (torch.cartesian_prod(*map(torch.arange, s)).view(-1, len(grid)) for s in sides)
    offsets = (context - queries[:, None]).to(table.device)  # (n, m, D)
    embeddings = embeddings_at(table, offsets.unbind(-1), dilation)
    if causal:
        embeddings = embeddings.movedim((0, 1), (-2, -1)).tril().movedim((-2, -1), (0, 1))
    return embeddings


def embeddings_at(table: Tensor, offsets: Sequence[Tensor], dilation: int) -> Tensor:
    """Return R[center + offset / dilation] (.., k[, u]) for int64 offsets (..) along each axis of R (r_1..r_D, k[, u]).

    It is zero where an offset is outside the table or not a multiple of the dilation.
    """
    index, inside = torch.zeros_like(offsets[0]), torch.ones_like(offsets[0], dtype=torch.bool)
    for offset, r in zip(offsets, table.shape, strict=False):
        step = offset.div(dilation, rounding_mode="floor") + r // 2
        inside = inside & (offset % dilation == 0) & (step >= 0) & (step < r)
        index = index * r + step.clamp(0, r - 1)
    rows = table.flatten(0, len(offsets) - 1)[index]
    return rows.masked_fill(~inside[(..., *(None,) * (rows.ndim - index.ndim))], 0)
