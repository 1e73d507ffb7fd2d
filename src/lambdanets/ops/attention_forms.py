"""Other attention mechanisms written as lambdas (Appendix D.3, D.4).

For illustration and tests, not optimized. Diagonal lambdas are stored as full matrices, which costs k times as much as
an elementwise product.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.interaction import lambda_interaction


def apply_lambdas(queries: Tensor, lambdas: Tensor) -> Tensor:
    """y[b,h,n,:] = lambda^T q[b,h,n] (Eq. 2): queries (b, h, n, k), lambdas (b, k, v) for all n, or (b, n, k, v).

    Returns (b, h, n, v). Cost: b h n k v multiply-adds. Raises ValueError for other shapes.
    """
    shape = (queries.shape[0], *queries.shape[2:]) if queries.ndim == 4 else ()
    if queries.ndim != 4 or lambdas.ndim not in (3, 4) or lambdas.shape[:-1] not in (shape, shape[:1] + shape[2:]):
        raise ValueError(
            "queries must be (b, h, n, k) and lambdas (b, k, v) or (b, n, k, v); "
            f"got shapes {tuple(queries.shape)} and {tuple(lambdas.shape)}"
        )
    return torch.einsum("bhnk,bkv->bhnv" if lambdas.ndim == 3 else "bhnk,bnkv->bhnv", queries, lambdas)


def channel_attention_lambda(weights: Tensor) -> Tensor:
    """lambda = diag(w_1 .. w_k), shared by all positions: y[n,k] = w_k q[n,k], as in squeeze-and-excitation (D.4).

    weights (b, k): one weight per channel. Returns (b, k, k). Raises ValueError unless weights has two dimensions.
    """
    if weights.ndim != 2:
        raise ValueError(f"weights must be (b, k), got shape {tuple(weights.shape)}")
    return torch.diag_embed(weights)


def spatial_attention_lambdas(weights: Tensor, query_depth: int) -> Tensor:
    """lambda_n = w_n I: y[n,k] = w_n q[n,k], spatial attention (D.4).

    weights (b, n): one weight per position. Returns (b, n, k, k). Raises ValueError unless weights has two dimensions.
    """
    if weights.ndim != 2:
        raise ValueError(f"weights must be (b, n), got shape {tuple(weights.shape)}")
    identity = torch.eye(query_depth, dtype=weights.dtype, device=weights.device)
    return weights[:, :, None, None] * identity


def elu_plus_one(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1, the feature function of Katharopoulos et al. (2020)."""
    return F.elu(x) + 1


def linear_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    feature: Callable[[Tensor], Tensor] = elu_plus_one,
    *,
    causal: bool = False,
    multi_head: bool = False,
) -> Tensor:
    """y_n = (sum_m phi(k_m) v_m^T)^T phi(q_n) / (sum_m phi(k_m))^T phi(q_n): a content-only lambda (D.3, Eqs. 3, 4).

    The denominator is the same lambda with ones as values. If phi is a softmax (over m for keys, over k for queries),
    no denominator is needed: this is a lambda layer with normalize_queries="softmax" and position=False.

    queries: (b, h, n, k). keys: (b, m, k). values: (b, m, v). If multi_head, keys and values have a head axis before m,
    as in standard attention.
    feature: phi, which must be positive: the result is NaN where every phi(q_n) phi(k_m) is 0.
    causal: use only context positions m <= n.
    Returns (b, h, n, v). Cost: b (m + h n) k v multiply-adds. Raises ValueError in the same cases as
    `lambda_interaction`.
    """
    values_and_ones = F.pad(values, (0, 1), value=1.0)
    output = lambda_interaction(
        feature(queries),
        feature(keys),
        values_and_ones,
        None,
        normalize_keys=None,
        causal=causal,
        multi_head=multi_head,
    )
    return output[..., :-1] / output[..., -1:]
