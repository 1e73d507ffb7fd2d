"""The content lambda: what the context says, whatever the query position."""

import torch
from torch import Tensor

from lambdanets.ops.precision import compute_and_result_dtype, without_autocast


def content_lambda(keys: Tensor, values: Tensor) -> Tensor:
    """lambda_c = sum_m softmax_m(k)[m] v[m]^T, summed over u where there is one (Eq. 1, first term).

    keys (b, m, k[, u]) as projected: the softmax over the context positions m is taken here, in float32 or wider.
    values (b, m, v[, u]). Returns (b, k, v) in the dtype of the inputs (float32 under float16 autocast).
    Cost: b m k v u multiply-adds. Raises ValueError naming the argument that does not fit.
    """
    if keys.ndim not in (3, 4) or keys.ndim != values.ndim or keys.shape[:2] != values.shape[:2]:
        raise ValueError(
            "keys and values must be (b, m, k) and (b, m, v), or both with a trailing u; "
            f"got shapes {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if keys.shape[3:] != values.shape[3:]:
        raise ValueError(f"values must have the u of keys, {keys.shape[3]}, got shape {tuple(values.shape)}")
    compute, returned = compute_and_result_dtype(keys=keys, values=values)
    with without_autocast(keys.device):
        wide = torch.float64 if compute == torch.float64 else torch.float32
        normalized = keys.softmax(dim=1, dtype=wide).to(compute)
        equation = "bmk,bmv->bkv" if values.ndim == 3 else "bmku,bmvu->bkv"
        return torch.einsum(equation, normalized, values.to(compute)).to(returned)
