"""Content and position together, for embeddings of any structure."""

import torch
from torch import Tensor

from lambdanets.ops.content import content_lambda
from lambdanets.ops.precision import compute_and_result_dtype, without_autocast


def lambda_interaction(
    queries: Tensor,
    keys: Tensor | None,
    values: Tensor,
    embeddings: Tensor | None,
    *,
    mask: Tensor | None = None,
    multi_head: bool = False,
) -> Tensor:
    """y[b,h,n,:] = sum_k q[b,h,n,k] (sum_m softmax_m(k)[b,m,k] v[b,m,:] + sum_m e[n,m,k] v[b,m,:])  (Eqs. 1 and 2).

    queries: (b, h, n, k). keys: (b, m, k[, u]) as projected, not yet normalized over the context; None for position
    only. values: (b, m, v[, u]). embeddings: (n, m, k[, u]) shared by the batch, (b, n, m, k[, u]) per example, or
    None for content only. The trailing u is there when values have it, and is summed over (C.4).

    Returns (b, h, n, v) in the dtype of the inputs. The softmax is taken in float32 or wider; float16 computes in
    float32, and under float16 autocast the result is float32. Differentiable twice.
    Cost: b m k v u + b n h k v multiply-adds for the content, b n m k u v for shared embeddings, and
    b n m h (k u + v) for embeddings per example, whose lambdas are never formed.
    Raises ValueError naming the argument that does not fit, NotImplementedError for mask and multi_head.
    """
    if mask is not None:
        raise NotImplementedError("mask: masked contexts (Sec. C.2) are not served yet")
    if multi_head:
        raise NotImplementedError("multi_head: a lambda per head (Sec. C.3) is not served yet")
    check_lambda_interaction(queries, keys, values, embeddings)
    compute, returned = compute_and_result_dtype(queries=queries, keys=keys, values=values, embeddings=embeddings)
    queries, values = queries.to(compute), values.to(compute)
    with without_autocast(queries.device):
        output: Tensor | None = None
        if keys is not None:
            output = torch.einsum("bhnk,bkv->bhnv", queries, content_lambda(keys.to(compute), values))
        if embeddings is not None:
            position = _position(queries, values, embeddings.to(compute))
            output = position if output is None else output + position
    assert output is not None
    return output.to(returned)


def _position(queries: Tensor, values: Tensor, embeddings: Tensor) -> Tensor:
    if values.ndim == 3:
        values, embeddings = values.unsqueeze(-1), embeddings.unsqueeze(-1)
    if embeddings.ndim == 4:
        lambdas = torch.einsum("nmku,bmvu->bnkv", embeddings, values)
        return torch.einsum("bhnk,bnkv->bhnv", queries, lambdas)
    logits = torch.einsum("bhnk,bnmku->bhnmu", queries, embeddings)
    return torch.einsum("bhnmu,bmvu->bhnv", logits, values)


def check_lambda_interaction(queries: Tensor, keys: Tensor | None, values: Tensor, embeddings: Tensor | None) -> None:
    """Raise ValueError, naming the argument, what was expected and what came, unless the shapes fit together."""
    if queries.ndim != 4:
        raise ValueError(f"queries must be (b, h, n, k), got shape {tuple(queries.shape)}")
    if values.ndim not in (3, 4):
        raise ValueError(f"values must be (b, m, v) or (b, m, v, u), got shape {tuple(values.shape)}")
    if keys is None and embeddings is None:
        raise ValueError("keys and embeddings are both None: give keys for content, embeddings for position, or both")
    batch, _, positions, depth = queries.shape
    if values.shape[0] != batch:
        raise ValueError(f"values must have the batch of queries, {batch}, got shape {tuple(values.shape)}")
    context, intra = values.shape[1], tuple(values.shape[3:])
    letters = ", u" if intra else ""
    if keys is not None and tuple(keys.shape) != (batch, context, depth, *intra):
        raise ValueError(
            f"keys must be (b, m, k{letters}) = {(batch, context, depth, *intra)}, got shape {tuple(keys.shape)}"
        )
    if embeddings is not None:
        shared = (positions, context, depth, *intra)
        if tuple(embeddings.shape) not in (shared, (batch, *shared)):
            raise ValueError(
                f"embeddings must be (n, m, k{letters}) = {shared}, or that after the batch {batch}; "
                f"got shape {tuple(embeddings.shape)}"
            )
