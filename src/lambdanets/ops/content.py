"""The content term: keys normalized over the context and multiplied by values."""

from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.causal import causal_content
from lambdanets.ops.checks import check_tensors
from lambdanets.ops.precision import accumulation_dtype, compute_and_result_dtype, sqrt_or_one, without_autocast

# Implemented in `normalize_over_context`, `mask_context`, `_interact_with_mask`, causal.py, decoding.py, definition.py.
NORMALIZATIONS = ("softmax", "l2", None)


def content_lambda(
    keys: Tensor, values: Tensor, *, normalize_keys: str | None = "softmax", mask: Tensor | None = None
) -> Tensor:
    """lambda_c = sum_m kbar[m] v[m]^T, summed over u if present (Eq. 1, first term).

    Args:
        keys: (b, m, k[, u]), not yet normalized.
        values: (b, m, v[, u]).
        normalize_keys: over the context positions m (Table 11): "softmax"; "l2", k / sqrt(sum_m k^2); None,
            unnormalized.
        mask: (b, m) bool, or (m,) or (1, m) for all examples, True for valid positions, False for padding; an empty
            context gives 0.

    Returns (b, k, v) in the dtype of the inputs (float32 under float16 autocast). Keys are normalized in float32 or
    wider. Cost: b m k v u multiply-adds. Raises ValueError naming the invalid argument.
    """
    check_tensors({"mask": mask}, keys=keys, values=values)
    if keys.ndim not in (3, 4) or keys.ndim != values.ndim or keys.shape[:2] != values.shape[:2]:
        raise ValueError(
            "keys and values must be (b, m, k) and (b, m, v), or both with a trailing u; "
            f"got shapes {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if keys.shape[3:] != values.shape[3:]:
        raise ValueError(f"values must have u = {keys.shape[3]}, like keys, got shape {tuple(values.shape)}")
    check_normalization(normalize_keys)
    batch, context = keys.shape[:2]
    shapes = ((context,), (1, context), (batch, context))
    if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) not in shapes):
        raise ValueError(
            f"mask must be bool, (m,) = {(context,)} or (b, m) = {(batch, context)}; "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    dtype, result_dtype = compute_and_result_dtype(keys=keys, values=values)
    keys, values = keys.to(dtype), values.to(dtype)
    if mask is not None:
        keys, values = mask_context(keys, values, mask.expand(batch, context), normalize_keys)
    with without_autocast(keys.device):
        return shared_lambda(keys, values, normalize_keys).to(result_dtype)


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

    queries (b, h, n, k), keys (b, m, k, u) and values (b, m, v, u) have the same dtype. mask: of pairs, (n, m) or
    (b, n, m). Returns (b, h, n, v).
    """
    if mask is not None:
        mask = mask.tril() if causal else mask
        return _interact_with_mask(queries, keys, values, normalize_keys, mask if mask.ndim == 3 else mask.unsqueeze(0))
    if causal:
        return causal_content(queries, keys, values, normalize_keys)
    return queries @ shared_lambda(keys, values, normalize_keys).unsqueeze(1)


def mask_context(keys: Tensor | None, values: Tensor, valid: Tensor, normalize_keys: str | None) -> tuple[Any, Tensor]:
    """Replace keys and values (.., m, c[, u]) where valid (.., m) is False, so that no sum over m needs the mask.

    The lowest finite key has no weight in a softmax, and unlike -inf gives no 0 / 0 in an empty context, whose values
    are 0. Masked numbers may be NaN.
    """
    invalid = ~valid[(..., *(None,) * (values.ndim - valid.ndim))]
    if keys is not None:
        keys = keys.masked_fill(invalid, torch.finfo(keys.dtype).min if normalize_keys == "softmax" else 0)
    return keys, values.masked_fill(invalid, 0)


def check_normalization(normalize_keys: str | None) -> None:
    """Raise ValueError unless normalize_keys is in NORMALIZATIONS."""
    if normalize_keys not in NORMALIZATIONS:
        raise ValueError(f"normalize_keys must be 'softmax', 'l2' or None, got {normalize_keys!r}")


def shared_lambda(keys: Tensor, values: Tensor, normalize_keys: str | None) -> Tensor:
    """`content_lambda` of checked keys and values with the same dtype. Autocast must be off."""
    if keys.ndim == 3 and normalize_keys == "softmax":  # along contiguous positions
        return torch.bmm(keys.transpose(1, 2).softmax(dim=-1), values)  # the softmax of 16 bits sums in float32
    if keys.ndim == 3:
        keys, values = keys.unsqueeze(-1), values.unsqueeze(-1)
    normalized = normalize_over_context(keys, None, normalize_keys)
    return torch.einsum("bmku,bmvu->bkv", normalized.to(values.dtype), values)


def normalize_over_context(keys: Tensor, allowed: Tensor | None, normalize_keys: str | None) -> Tensor:
    """Normalize keys (.., m, k, u) over the allowed m in float32 or wider; the result is 0 elsewhere."""
    if normalize_keys is None:
        return keys if allowed is None else keys.masked_fill(~allowed, 0)
    keys = keys.to(accumulation_dtype(keys.dtype))
    if normalize_keys == "softmax":
        if allowed is None:  # along contiguous positions
            return keys.transpose(-3, -1).softmax(dim=-1).transpose(-3, -1)
        # Fill with the lowest finite number instead of -inf: an empty context must not give 0 / 0.
        return keys.masked_fill(~allowed, torch.finfo(keys.dtype).min).softmax(dim=-3).masked_fill(~allowed, 0)
    assert normalize_keys == "l2", normalize_keys
    keys = keys if allowed is None else keys.masked_fill(~allowed, 0)
    return keys / sqrt_or_one(keys.square().sum(dim=-3, keepdim=True))


def _interact_with_mask(
    queries: Tensor, keys: Tensor, values: Tensor, normalize_keys: str | None, mask: Tensor
) -> Tensor:
    """The content term with a separate context for each query; mask: (b or 1, n, m).

    Multiplies queries with keys first, so no lambda is computed: b n m h (k + v) u multiply-adds. Normalized keys have
    b n m k u elements, because they are normalized over each query's own context.
    """
    if normalize_keys is None:
        logits = torch.einsum("bhnk,bmku->bhnmu", queries, keys).masked_fill(~mask[:, None, ..., None], 0)
    else:
        weights = normalize_over_context(keys.unsqueeze(1), mask[..., None, None], normalize_keys)
        logits = torch.einsum("bhnk,bnmku->bhnmu", queries, weights.to(queries.dtype))
    return torch.einsum("bhnmu,bmvu->bhnv", logits, values)
