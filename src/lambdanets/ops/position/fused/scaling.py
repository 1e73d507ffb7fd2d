"""Scales float16 operands by powers of two so that no intermediate result overflows; needs no host synchronization.

Products of float16 numbers are accumulated in float32, where they are exact. Only operands and the intermediate result
between two products, a sum of k or v terms, are float16. One operand of the first product is multiplied by a power of
two that limits the intermediate result to 2^15, and the final result is multiplied by the inverse. float16 has 11 bits
down to 2^-14, so intermediate results within a factor of 2^-29 of the limit keep 11 bits; bfloat16 has 8. If the other
operand is large, the scaled operand keeps fewer bits: for values of up to V, gradients within a factor of
2^-29 v max(V, 1) of the largest keep 11 bits, and smaller ones become subnormal or 0.

Letters: q queries, E table, V values, c content lambda, g grad_output; S = q E and T = g V are intermediate results.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lambdanets.ops.position.fused.tiles import K, max_value_channels

# Indices of the scales. The scales that other kernels read are aligned to 16 bytes, so each has a slot of 4 floats.
SLOT = 4
FORWARD, GRAD_QUERIES, GRAD_TABLE, GRAD_VALUES = (SLOT * i for i in range(4))
TABLE_FOR_LOGITS, CONTENT, TABLE_FOR_GRAD_QUERIES, GRAD_OUTPUT = (SLOT * 4 + i for i in range(4))


class ForwardOperands(NamedTuple):
    """Scaled table and content lambda; `scales`: factors for the result and for the content term."""

    table: Tensor
    content: Tensor | None
    scales: Tensor | None


class BackwardOperands(NamedTuple):
    """Scaled operands and the factors for the gradients.

    table_for_grad_queries: the table scaled for T E. table_for_logits: the table scaled for S = q E in grad_values.
    grad_queries_scales: factors for the gradient and, applied before it, for the content term.
    """

    grad_output: Tensor
    table_for_grad_queries: Tensor
    table_for_logits: Tensor
    content: Tensor | None
    grad_queries_scales: Tensor | None = None
    grad_table_scale: Tensor | None = None
    grad_values_scale: Tensor | None = None


def forward_operands(queries: Tensor, table: Tensor, content: Tensor | None) -> ForwardOperands:
    """Scale the operands of the forward pass for float16 queries and values; others may have any floating dtype."""
    scales = _scales(table, queries, content, None, None)
    return ForwardOperands(
        _scale(table, scales, TABLE_FOR_LOGITS),
        None if content is None else _scale(content, scales, CONTENT),
        scales[FORWARD:],
    )


def backward_operands(
    grad_output: Tensor, queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None
) -> BackwardOperands:
    """Scale the operands of the backward pass for float16 queries and values; others may have any floating dtype."""
    scales = _scales(table, queries, content, grad_output, values)
    return BackwardOperands(
        _scale(grad_output, scales, GRAD_OUTPUT),
        _scale(table, scales, TABLE_FOR_GRAD_QUERIES),
        _scale(table, scales, TABLE_FOR_LOGITS),
        None if content is None else _scale(content, scales, CONTENT),
        grad_queries_scales=scales[GRAD_QUERIES:],
        grad_table_scale=scales[GRAD_TABLE:],
        grad_values_scale=scales[GRAD_VALUES:],
    )


def unscaled_backward_operands(grad_output: Tensor, table: Tensor, content: Tensor | None) -> BackwardOperands:
    """Return the operands of the backward pass for dtypes that need no scaling."""
    return BackwardOperands(grad_output, table, table, content)


def _scales(
    table: Tensor, queries: Tensor, content: Tensor | None, grad_output: Tensor | None, values: Tensor | None
) -> Tensor:
    """Compute all scales from the maximum magnitude of each operand that is not None."""
    from lambdanets.ops.position.fused.scaling_kernel import compute_scales

    maxima = torch.empty(5, device=table.device)
    for i, x in enumerate((table, queries, content, grad_output, values)):
        if x is not None:
            torch.linalg.vector_norm(x, torch.inf, dtype=torch.float32, out=maxima[i])
    scales = torch.empty(5 * SLOT, device=table.device)
    value_terms = 0 if values is None else min(values.shape[2], max_value_channels(values.dtype.itemsize))
    terms = min(queries.shape[3], K), value_terms, queries.shape[1]
    compute_scales[(1,)](maxima, scales, *terms, SLOT, TABLE_FOR_LOGITS)
    return scales


def _scale(x: Tensor, scales: Tensor, i: int) -> Tensor:
    """Return x * scales[i] in float16, multiplied in float32 without an intermediate tensor."""
    scale = scales[i : i + 1]  # a 0-d tensor would be cast to the dtype of x
    return torch.mul(x, scale, out=torch.empty_like(x, dtype=torch.float16))
