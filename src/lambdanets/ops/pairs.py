"""The sum of content and position terms for arbitrary embeddings and masks."""

import itertools
from typing import Any

import torch
from torch import Tensor

from lambdanets.ops.causal import causal_content
from lambdanets.ops.checks import check_flags, check_mask, check_shape, check_tensors
from lambdanets.ops.content import check_normalization, mask_context, normalize_over_context, shared_lambda
from lambdanets.ops.precision import compute_and_result_dtype, without_autocast


def lambda_interaction(
    queries: Tensor,
    keys: Tensor | None,
    values: Tensor,
    embeddings: Tensor | None,
    *,
    mask: Tensor | None = None,
    multi_head: bool = False,
    normalize_keys: str | None = "softmax",
    causal: bool = False,
) -> Tensor:
    """y[b,h,n,:] = sum_k q[b,h,n,k] (sum_m kbar[b,n,m,k] v[b,m,:] + sum_m e[n,m,k] v[b,m,:])  (Eqs. 1 and 2, C.2).

    Args:
        queries: (b, h, n, k).
        keys: (b, m, k[, u]), not yet normalized, or None to omit the content term.
        values: (b, m, v[, u]). If values have the axis u, keys and embeddings have it too; it is summed over (C.4).
        embeddings: (n, m, k[, u]), (b, n, m, k[, u]) for different embeddings per example, or None to omit the position
            term.
        mask: bool, True where query n and context position m interact: (n, m), or (b, n, m) for different masks per
            example; (b, 1, m) if all queries share one context, as in a padded batch, or (1, m) if all examples do too.
            Sums and normalization are over the context of each query (Fig. 6, with the keys normalized as in its
            comment). An empty context gives 0.
        causal: use only context positions m <= n; requires m = n.
        multi_head: one lambda per head (C.3), with keys (b, h, m, k[, u]), values (b, h, m, v[, u]) and embeddings (h,
            n, m, k[, u]) or (b, h, n, m, k[, u]).
        normalize_keys: over the context (Table 11): "softmax"; "l2", k / sqrt(sum_m k^2); None, unnormalized.

    Returns (b, h, n, v) in the dtype of the inputs. Keys are normalized in float32 or wider. float16 inputs are
    computed in float32, and under float16 autocast the result is float32. Twice differentiable.
    Cost of the content term in multiply-adds: b (m + h n) k v u if all queries share one context; see
    `lambdanets.ops.causal` if causal; b n m h (k + v) u with a mask of several rows. Cost of the position term:
    b n m k u v if embeddings and mask are shared by the batch, otherwise b n m h (k + v) u. Memory: b n m k u elements
    for keys with a mask of several rows, and for embeddings that are not shared. With multi_head, h times the cost of
    one head.
    Raises ValueError naming the invalid argument.
    """
    optional = {"keys": keys, "embeddings": embeddings, "mask": mask}
    check_tensors(optional, queries=queries, values=values)
    check_flags(multi_head=multi_head, causal=causal)
    check_normalization(normalize_keys)
    if keys is None and embeddings is None:
        raise ValueError("keys and embeddings must not both be None; pass keys, embeddings or both")
    sizes: dict[str, int] = {}
    h = "h " if multi_head else ""
    check_shape(sizes, "queries", queries, "b h n k")
    check_shape(sizes, "values", values, f"b {h}m v", f"b {h}m v u")
    if causal and sizes["m"] != sizes["n"]:
        raise ValueError(f"context must have {sizes['n']} positions, like queries, if causal is True; got {sizes['m']}")
    u = " u" if "u" in sizes else ""
    if keys is not None:
        check_shape(sizes, "keys", keys, f"b {h}m k{u}")
    if embeddings is not None:
        check_shape(sizes, "embeddings", embeddings, f"{h}n m k{u}", f"b {h}n m k{u}")
    if mask is not None:
        mask = expand_mask(mask, sizes["b"], sizes["n"], sizes["m"])
    dtype, result_dtype = compute_and_result_dtype(queries=queries, keys=keys, values=values, embeddings=embeddings)
    factors: list[Any] = [x if x is None else x.to(dtype) for x in (queries, keys, values, embeddings)]
    if not u:
        factors[1:] = [x if x is None else x.unsqueeze(-1) for x in factors[1:]]
    by_head: Any = [factors]
    if multi_head:
        axes = zip(factors[1:], (1, 1, -5), strict=True)
        parts: list[Any] = [itertools.repeat(None) if x is None else x.unbind(axis) for x, axis in axes]
        by_head = zip(factors[0].split(1, dim=1), *parts, strict=False)
    with without_autocast(queries.device):
        outputs = [_interaction(q, k, v, e, mask, normalize_keys, causal) for q, k, v, e in by_head]
        return (torch.cat(outputs, dim=1) if multi_head else outputs[0]).to(result_dtype)


def _interaction(
    queries: Tensor,
    keys: Tensor | None,
    values: Tensor,
    embeddings: Tensor | None,
    mask: Tensor | None,
    normalize_keys: str | None,
    causal: bool,
) -> Tensor:
    """`lambda_interaction` with one lambda for all heads and the axis u; embeddings: ([b, ]n, m, k, u)."""
    if mask is not None:
        one_row = mask.shape[-2] == 1
        mask = mask.tril() if causal and not one_row else mask
        valid = mask.squeeze(-2) if one_row else mask.any(dim=-2)
        keys, values = mask_context(keys, values, valid.expand(values.shape[0], -1), normalize_keys)
        mask = None if one_row else mask
    terms = []
    if keys is not None and mask is not None:
        weights = normalize_over_context(keys.unsqueeze(1), mask[..., None, None], normalize_keys)
        terms.append(_multiply_queries_first(queries, weights.to(queries.dtype), values))
    elif keys is not None and causal:
        terms.append(causal_content(queries, keys, values, normalize_keys))
    elif keys is not None:
        terms.append(queries @ shared_lambda(keys, values, normalize_keys).unsqueeze(1))
    if embeddings is not None:
        if causal and mask is None:
            mask = torch.ones(embeddings.shape[-4:-2], dtype=torch.bool, device=values.device).tril()
        if mask is not None:
            embeddings = embeddings.masked_fill(~mask[..., None, None], 0)
        if embeddings.ndim == 5:
            terms.append(_multiply_queries_first(queries, embeddings, values))
        else:
            lambdas = torch.einsum("nmku,bmvu->bnkv", embeddings, values)
            terms.append(torch.einsum("bhnk,bnkv->bhnv", queries, lambdas))
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _multiply_queries_first(queries: Tensor, embeddings: Tensor, values: Tensor) -> Tensor:
    """The sum for embeddings or keys of each example and pair, (b, n, m, k, u), without lambdas."""
    logits = torch.einsum("bhnk,bnmku->bhnmu", queries, embeddings)
    return torch.einsum("bhnmu,bmvu->bhnv", logits, values)


def expand_mask(mask: Tensor, batch: int, positions: int, context: int) -> Tensor:
    """Return a mask as (n, m), as (b, n, m), or, if it has one row, as (b, 1, m).

    A mask for one example is for all. Raises ValueError unless the mask is bool and has one of these shapes.
    """
    forms = "n m", "1 m", "b n m", "b 1 m", "1 n m", "1 1 m"
    try:
        check_mask({"b": batch, "n": positions, "m": context}, mask, *forms)
    except ValueError as error:
        raise ValueError(f"{error}; a padding mask (b, m) becomes (b, 1, m) by mask[:, None]") from None
    if mask.shape[-2] == 1:
        return mask.expand(batch, 1, context)
    return mask[0] if mask.ndim == 3 and mask.shape[0] == 1 else mask  # len() would fix the size of graphs
