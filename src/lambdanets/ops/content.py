"""The content term: what the context says, by its keys."""

import torch
from torch import Tensor

from lambdanets.ops.causal import causal_content
from lambdanets.ops.precision import compute_and_result_dtype, root_or_one, wide, without_autocast

NORMALIZATIONS = ("softmax", "l2", None)


def content_lambda(
    keys: Tensor, values: Tensor, *, normalize_keys: str | None = "softmax", mask: Tensor | None = None
) -> Tensor:
    """lambda_c = sum_m kbar[m] v[m]^T, summed over u where there is one (Eq. 1, first term).

    keys: (b, m, k[, u]) as projected. values: (b, m, v[, u]).
    normalize_keys: kbar over the context positions m (Table 11): "softmax"; "l2", k / sqrt(sum_m k^2); None, as given.
    mask: (m,) or (b, m) bool, True for the positions that count, as in a padded batch; a context with none gives 0.

    Returns (b, k, v) in the dtype of the inputs (float32 under float16 autocast). Keys are normalized in float32 or
    wider. Cost: b m k v u multiply-adds. Raises ValueError naming the argument that does not fit.
    """
    if keys.ndim not in (3, 4) or keys.ndim != values.ndim or keys.shape[:2] != values.shape[:2]:
        raise ValueError(
            "keys and values must be (b, m, k) and (b, m, v), or both with a trailing u; "
            f"got shapes {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if keys.shape[3:] != values.shape[3:]:
        raise ValueError(f"values must have the u of keys, {keys.shape[3]}, got shape {tuple(values.shape)}")
    check_normalization(normalize_keys)
    if mask is not None:
        batch, context = keys.shape[:2]
        if mask.dtype != torch.bool or tuple(mask.shape) not in ((context,), (batch, context)):
            raise ValueError(
                f"mask must be bool, (m,) = {(context,)} or (b, m) = {(batch, context)}; "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        mask = mask.expand(batch, context)
    compute, returned = compute_and_result_dtype(keys=keys, values=values)
    keys, values = keys.to(compute), values.to(compute)
    if keys.ndim == 3:
        keys, values = keys.unsqueeze(-1), values.unsqueeze(-1)
    with without_autocast(keys.device):
        return _lambda_of_context(keys, values, normalize_keys, mask).to(returned)


def content_interaction(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    normalize_keys: str | None,
    mask: Tensor | None,
    causal: bool,
) -> Tensor:
    """y[b,h,n,:] = (sum_m kbar[b,n,m] v[b,m]^T)^T q[b,h,n], keys normalized over each query's own context (C.2).

    queries (b, h, n, k), keys (b, m, k, u), values (b, m, v, u), all checked and of one dtype; mask (n, m), (b, n, m)
    or with one row for all queries, (1, m) or (b, 1, m). Returns (b, h, n, v).
    """
    if mask is not None and mask.shape[-2] != 1:
        if causal:
            mask = mask.tril()
        return _own_contexts(queries, keys, values, normalize_keys, mask if mask.ndim == 3 else mask.unsqueeze(0))
    shared = None if mask is None else mask.squeeze(-2).expand(keys.shape[0], -1)
    if causal:
        return causal_content(queries, keys, values, normalize_keys, shared)
    content = _lambda_of_context(keys, values, normalize_keys, shared)
    return queries @ content.unsqueeze(1)


def check_normalization(normalize_keys: str | None) -> None:
    """Raise ValueError unless it is one of NORMALIZATIONS."""
    if normalize_keys not in NORMALIZATIONS:
        raise ValueError(f"normalize_keys must be 'softmax', 'l2' or None, got {normalize_keys!r}")


def _lambda_of_context(keys: Tensor, values: Tensor, how: str | None, mask: Tensor | None) -> Tensor:
    """(b, k, v) from keys (b, m, k, u), values (b, m, v, u), mask (b, m): one context for all queries."""
    if mask is not None:
        allowed = mask[..., None, None]
        values = values.masked_fill(~allowed, 0)
    if how == "softmax":
        normalized = keys.to(wide(keys.dtype))
        if mask is None:
            normalized = normalized.softmax(dim=1)
        else:
            # The least finite number, not -inf: a context with nothing in it must not become 0 / 0.
            least = torch.finfo(normalized.dtype).min
            normalized = normalized.masked_fill(~allowed, least).softmax(dim=1).masked_fill(~allowed, 0)
    else:
        normalized = keys if mask is None else keys.masked_fill(~allowed, 0)
        if how == "l2":
            squares = normalized.to(wide(keys.dtype)).square().sum(dim=1, keepdim=True)
            normalized = normalized / root_or_one(squares)
    return torch.einsum("bmku,bmvu->bkv", normalized.to(values.dtype), values)


def _own_contexts(queries: Tensor, keys: Tensor, values: Tensor, how: str | None, mask: Tensor) -> Tensor:
    """Each query with the context its row of the mask (b or 1, n, m) allows.

    Queries meet keys first, so that no lambda is formed: b n m h (k + v) u multiply-adds. The softmax takes
    b n m k u numbers, because its maximum differs by query; "l2" and None take b n m h u.
    """
    if how == "softmax":
        allowed = mask[..., None, None]
        least = torch.finfo(wide(keys.dtype)).min
        weights = keys.to(wide(keys.dtype)).unsqueeze(1).masked_fill(~allowed, least).softmax(dim=2)
        weights = weights.masked_fill(~allowed, 0).to(queries.dtype)
        logits = torch.einsum("bhnk,bnmku->bhnmu", queries, weights)
    else:
        scaled = queries.unsqueeze(-1)  # (b, h, n, k, 1)
        if how == "l2":
            squares = keys.to(wide(keys.dtype)).square()
            squares = torch.einsum("bnm,bmku->bnku", mask.to(squares.dtype).expand(keys.shape[0], -1, -1), squares)
            scaled = (scaled / root_or_one(squares).unsqueeze(1)).to(queries.dtype)
        logits = torch.einsum("bhnku,bmku->bhnmu", scaled.expand(*queries.shape, keys.shape[3]), keys)
        logits = logits.masked_fill(~mask[:, None, ..., None], 0)
    return torch.einsum("bhnmu,bmvu->bhnv", logits, values)
