"""Powers of two that keep products of float16 within its range: exact, and without a host synchronization.

A product of two float16 numbers is exact in float32, where sums are kept. What has to fit float16 is an operand, and
the factor between two products, a sum of k or v terms, which is rounded before the second product. So one operand of
the first product is multiplied by a power of two for which the largest sum possible stays below 2^15, and the result
by the inverse. float16 keeps 11 bits down to 2^-14, thus of all factors within 2^-29 of the bound, where bfloat16
keeps 8 bits of any. An operand that was scaled for a large other one keeps fewer: of gradients beside values of up to
V those within 2^-29 v max(V, 1) of the largest; smaller ones count as less and less, and at last as 0.

Names: q queries, E table, V values, c content lambda, g gradient of the output; S = q E and T = g V the two factors.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lambdanets.ops.position.fused.tiles import K, most_values

# Where the kernel puts its results: those that another kernel reads begin at 16 bytes, as all its tensors do.
SLOT = 4
FORWARD, GRAD_QUERIES, GRAD_TABLE, GRAD_VALUES = (SLOT * i for i in range(4))
BESIDE_QUERIES, CONTENT, BESIDE_GRADIENT, GRADIENT = (SLOT * 4 + i for i in range(4))


class ForwardOperands(NamedTuple):
    """Table and content lambda in the dtype of the products; what result and content term are multiplied by."""

    table: Tensor
    content: Tensor | None
    scales: Tensor | None


class BackwardOperands(NamedTuple):
    """Operands in the dtype of the products, and for each gradient what it is multiplied by.

    table_beside_gradient: of T E, for the queries. table_beside_queries: of S = q E, for the values.
    grad_queries_scales holds a second number, what the content term is multiplied by first.
    """

    gradient: Tensor
    table_beside_gradient: Tensor
    table_beside_queries: Tensor
    content: Tensor | None
    grad_queries_scales: Tensor | None = None
    grad_table_scale: Tensor | None = None
    grad_values_scale: Tensor | None = None


def forward_operands(queries: Tensor, table: Tensor, content: Tensor | None) -> ForwardOperands:
    """For float16 queries and values, a table and a content lambda of any floating dtype."""
    scales = _scales(table, queries, content, None, None)
    return ForwardOperands(
        _times(table, scales, BESIDE_QUERIES),
        None if content is None else _times(content, scales, CONTENT),
        scales[FORWARD:],
    )


def backward_operands(
    gradient: Tensor, queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None
) -> BackwardOperands:
    """For float16 queries and values; gradient, table and content lambda of any floating dtype."""
    scales = _scales(table, queries, content, gradient, values)
    return BackwardOperands(
        _times(gradient, scales, GRADIENT),
        _times(table, scales, BESIDE_GRADIENT),
        _times(table, scales, BESIDE_QUERIES),
        None if content is None else _times(content, scales, CONTENT),
        grad_queries_scales=scales[GRAD_QUERIES:],
        grad_table_scale=scales[GRAD_TABLE:],
        grad_values_scale=scales[GRAD_VALUES:],
    )


def unscaled(gradient: Tensor, table: Tensor, content: Tensor | None) -> BackwardOperands:
    """For dtypes that need no scales."""
    return BackwardOperands(gradient, table, table, content)


def _scales(
    table: Tensor, queries: Tensor, content: Tensor | None, gradient: Tensor | None, values: Tensor | None
) -> Tensor:
    """All scales, from the largest magnitude of each operand that is given."""
    from lambdanets.ops.position.fused.scaling_kernel import scales_of

    largest = torch.empty(5, device=table.device)
    for i, x in enumerate((table, queries, content, gradient, values)):
        if x is not None:
            torch.linalg.vector_norm(x, torch.inf, dtype=torch.float32, out=largest[i])
    scales = torch.empty(5 * SLOT, device=table.device)
    value_terms = 0 if values is None else min(values.shape[2], most_values(values.dtype.itemsize))
    scales_of[(1,)](largest, scales, min(queries.shape[3], K), value_terms)
    return scales


def _times(x: Tensor, scales: Tensor, i: int) -> Tensor:
    """x * scales[i] in float16, multiplied in float32, in one pass."""
    scale = scales[i : i + 1]  # a tensor without axes would be rounded to the dtype of x
    return torch.mul(x, scale, out=torch.empty_like(x, dtype=torch.float16))
