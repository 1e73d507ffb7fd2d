"""The content term: keys normalized over the context and multiplied by values."""

from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.checks import check_mask, check_shape, check_tensors
from lambdanets.ops.precision import accumulation_dtype, compute_and_result_dtype, sqrt_or_one, without_autocast

# Implemented in `shared_lambda`, `normalize_over_context`, `mask_context`, causal.py, decoding.py, definition.py.
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
    sizes: dict[str, int] = {}
    check_shape(sizes, "keys", keys, "b m k", "b m k u")
    check_shape(sizes, "values", values, "b m v u" if "u" in sizes else "b m v")
    check_normalization(normalize_keys)
    if mask is not None:
        check_mask(sizes, mask, "m", "1 m", "b m")
    dtype, result_dtype = compute_and_result_dtype(keys=keys, values=values)
    keys, values = keys.to(dtype), values.to(dtype)
    if mask is not None:
        keys, values = mask_context(keys, values, mask.expand(keys.shape[:2]), normalize_keys)
    with without_autocast(keys.device):
        return shared_lambda(keys, values, normalize_keys).to(result_dtype)


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
        raise ValueError(f"normalize_keys must be one of {NORMALIZATIONS}, got {normalize_keys!r}")


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
    if normalize_keys is not None:
        keys = keys.to(accumulation_dtype(keys.dtype))
    if allowed is not None:
        # The lowest finite number instead of -inf: an empty context must not give 0 / 0.
        keys = keys.masked_fill(~allowed, torch.finfo(keys.dtype).min if normalize_keys == "softmax" else 0)
    if normalize_keys is None:
        return keys
    if normalize_keys == "l2":
        return keys / sqrt_or_one(keys.square().sum(dim=-3, keepdim=True))
    assert normalize_keys == "softmax"
    weights = keys.transpose(-3, -1).softmax(dim=-1).transpose(-3, -1)  # along contiguous positions
    return weights if allowed is None else weights.masked_fill(~allowed, 0)
