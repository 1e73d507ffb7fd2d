"""The lambda layer's operation straight from the paper: the specification that every fast path is tested against.

Slow, any floating dtype, nothing clever. Letters as in the paper (Bello, ICLR 2021):
b batch, h heads, n query positions, m context positions, k query depth, v value depth, u intra-depth,
r scope, E embeddings of pairs (n, m), R relative embedding table.

The pseudo-code of Figs. 3 and 8 has slips in its einsum strings; the ones below follow Eqs. 1 and 2.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def lambda_interaction(queries: Tensor, keys: Tensor | None, values: Tensor, embeddings: Tensor | None) -> Tensor:
    """y[b,h,n,:] = lambda[b,n]^T q[b,h,n] with lambda[b,n] = sum_m (softmax_m(k)[b,m] + e[n,m]) v[b,m]^T  (Eqs. 1, 2).

    queries (b, h, n, k); keys (b, m, k[, u]) as projected, or None for position only; values (b, m, v[, u]);
    embeddings (n, m, k[, u]), (b, n, m, k[, u]) per example, or None for content only. The trailing u is there when
    values have it, and is summed over (Sec. C.4). Returns (b, h, n, v).
    """
    if values.ndim == 3:
        values = values[..., None]
        keys = None if keys is None else keys[..., None]
        embeddings = None if embeddings is None else embeddings[..., None]
    output = queries.new_zeros(*queries.shape[:3], values.shape[2])
    if keys is not None:
        content_lambda = torch.einsum("bmku,bmvu->bkv", keys.softmax(dim=1), values)
        output = output + torch.einsum("bhnk,bkv->bhnv", queries, content_lambda)
    if embeddings is not None:
        per_example = "b" if embeddings.ndim == 5 else ""
        position_lambdas = torch.einsum(f"{per_example}nmku,bmvu->bnkv", embeddings, values)
        output = output + torch.einsum("bhnk,bnkv->bhnv", queries, position_lambdas)
    return output


def position_interaction(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    grid: Sequence[int],
    *,
    dilation: int = 1,
    causal: bool = False,
) -> Tensor:
    """The position term of Eq. 2 with translation-equivariant embeddings e[n,m] = R[m - n] (Sec. 3.3).

    queries (b, h, n, k); table (r_1..r_D, k[, u]); values (b, n, v[, u]); n = prod(grid). Returns (b, h, n, v).
    """
    embeddings = relative_embeddings(table, grid, dilation=dilation, causal=causal)
    return lambda_interaction(queries, None, values, embeddings)


def relative_embeddings(table: Tensor, grid: Sequence[int], *, dilation: int = 1, causal: bool = False) -> Tensor:
    """E (n, m, k[, u]) from the table R (r_1..r_D, k[, u]): e[n,m] = R[centre + (m - n) / dilation] per axis.

    Zero where the offset is outside the table or no multiple of the dilation, and, if causal, where m comes after n
    in row-major order. One pair at a time.
    """
    dimensions = len(grid)
    positions = list(itertools.product(*(range(side) for side in grid)))
    nothing = torch.zeros_like(table[(0,) * dimensions])
    pairs = []
    for n, here in enumerate(positions):
        for m, there in enumerate(positions):
            entry = nothing
            offsets = [t - h for t, h in zip(there, here, strict=True)]
            if all(offset % dilation == 0 for offset in offsets) and not (causal and m > n):
                index = tuple(o // dilation + r // 2 for o, r in zip(offsets, table.shape[:dimensions], strict=True))
                if all(0 <= i < r for i, r in zip(index, table.shape[:dimensions], strict=True)):
                    entry = table[index]
            pairs.append(entry)
    return torch.stack(pairs).unflatten(0, (len(positions), len(positions)))
