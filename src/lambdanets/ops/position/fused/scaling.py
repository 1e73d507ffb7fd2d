"""Powers of two that keep products of float16 within its range: exact, and without waiting for the device.

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

_TOP = 15  # a float16 goes up to 2^16 - 2^5
_FARTHEST = 40  # larger exponents could take the product of two scales out of the range of float32


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
    beside_queries, content_scale = _powers(
        _bound_beside_queries(queries, table), _bound(table if content is None else content)
    )
    return ForwardOperands(
        _times(table, beside_queries),
        None if content is None else _times(content, content_scale),
        torch.stack([1 / beside_queries, beside_queries / content_scale]),
    )


def backward_operands(
    gradient: Tensor, queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None
) -> BackwardOperands:
    """For float16 queries and values; gradient, table and content lambda of any floating dtype."""
    terms = min(values.shape[2], most_values(values.dtype.itemsize))
    gradient_scale, beside_gradient, beside_queries, content_scale = _powers(
        _bound(gradient) * (terms * _bound(values)).clamp_min(1),
        _bound(table),
        _bound_beside_queries(queries, table),
        _bound(table if content is None else content),
    )
    return BackwardOperands(
        _times(gradient, gradient_scale),
        _times(table, beside_gradient),
        _times(table, beside_queries),
        None if content is None else _times(content, content_scale),
        grad_queries_scales=torch.stack([1 / (gradient_scale * beside_gradient), beside_gradient / content_scale]),
        grad_table_scale=1 / gradient_scale,
        grad_values_scale=1 / (gradient_scale * beside_queries),
    )


def unscaled(gradient: Tensor, table: Tensor, content: Tensor | None) -> BackwardOperands:
    """For dtypes that need no scales."""
    return BackwardOperands(gradient, table, table, content)


def _bound_beside_queries(queries: Tensor, table: Tensor) -> Tensor:
    """For which no S leaves the range, nor the table itself."""
    terms = min(queries.shape[3], K)
    return _bound(table) * (terms * _bound(queries)).clamp_min(1)


def _bound(x: Tensor) -> Tensor:
    """The largest magnitude in x, a tensor of one number in float32."""
    return torch.linalg.vector_norm(x, torch.inf, dtype=torch.float32)


def _powers(*bounds: Tensor) -> tuple[Tensor, ...]:
    """For each the greatest power of two, 2^-40 to 2^40, with which it stays below 2^15; inf and NaN count as 1."""
    one = 2.0 ** (_TOP - 1)  # the bound of which the power is 1
    exponents = torch.frexp(torch.stack(bounds).nan_to_num(one, one, one)).exponent
    exponents = (_TOP - exponents).clamp(-_FARTHEST, _FARTHEST)
    return ((exponents + 127) << 23).view(torch.float32).unbind()  # by their bits: a GPU's pow may round


def _times(x: Tensor, scale: Tensor) -> Tensor:
    """x * scale in float16, read and written once.

    A float16 x is widened first: PyTorch would round the scale, a tensor without axes, to the dtype of x.
    """
    x = x.float() if x.dtype == torch.float16 else x
    return torch.mul(x, scale, out=torch.empty_like(x, dtype=torch.float16))
