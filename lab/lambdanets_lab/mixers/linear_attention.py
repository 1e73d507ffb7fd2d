"""Linear attention written as lambdas (Appendix D.3)."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.pairs import lambda_interaction
from lambdanets.ops.precision import compute_and_result_dtype


def elu_plus_one(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1, the feature function of Katharopoulos et al. (2020)."""
    return F.elu(x) + 1


def linear_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    feature: Callable[[Tensor], Tensor] = elu_plus_one,
    *,
    multi_head: bool = False,
) -> Tensor:
    """y_n = (sum_m phi(k_m) v_m^T)^T phi(q_n) / (sum_m phi(k_m))^T phi(q_n): a content-only lambda (D.3, Eqs. 3, 4).

    The denominator is the same lambda with ones as values. If phi is a softmax (over m for keys, over k for queries),
    no denominator is needed: this is a lambda layer with normalize_queries="softmax" and position=False.

    queries: (b, h, n, k). keys: (b, m, k). values: (b, m, v). If multi_head, keys and values have a head axis before m,
    as in standard attention.
    feature: phi, which must be positive: the result is NaN where every phi(q_n) phi(k_m) is 0.
    Returns (b, h, n, v). Cost: b (m + h n) k v multiply-adds. Raises ValueError in the same cases as
    `lambda_interaction`.
    """
    compute_dtype, result_dtype = compute_and_result_dtype(queries=queries, keys=keys, values=values)
    # numerator and denominator may exceed the range of float16
    queries, keys, values = (x.to(compute_dtype) for x in (queries, keys, values))
    values_and_ones = F.pad(values, (0, 1), value=1.0)
    output = lambda_interaction(
        feature(queries), feature(keys), values_and_ones, None, normalize_keys=None, multi_head=multi_head
    )
    return (output[..., :-1] / output[..., -1:]).to(result_dtype)
