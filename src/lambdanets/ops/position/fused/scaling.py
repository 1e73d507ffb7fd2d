"""Powers of two that keep products of float16 within its range: exact, and without waiting for the device.

A product of two float16 numbers is exact in float32, where sums are kept. What has to fit float16 is an operand, and
the factor between two products, a sum of k or v terms, which is rounded before the second product. So one operand of
the first product is multiplied by a power of two for which the largest sum possible stays below 2^15, and the result
by the inverse. float16 keeps 11 bits down to 2^-14, thus of all factors within 2^-29 of the bound; bfloat16 keeps 8.

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
    of_queries holds a second number, what the content term is multiplied by first.
    """

    gradient: Tensor
    table_beside_gradient: Tensor
    table_beside_queries: Tensor
    content: Tensor | None
    of_queries: Tensor | None = None
    of_table: Tensor | None = None
    of_values: Tensor | None = None


def forward_operands(queries: Tensor, table: Tensor, content: Tensor | None) -> ForwardOperands:
    """For float16 queries and values, a table and a content lambda of any floating dtype."""
    scale = _table_scale(queries, table)
    content, content_scale = _scaled_content(content)
    return ForwardOperands(_times(table, scale), content, torch.stack([1 / scale, scale / content_scale]))


def backward_operands(
    gradient: Tensor, queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None
) -> BackwardOperands:
    """For float16 queries and values; gradient, table and content lambda of any floating dtype."""
    terms = min(values.shape[2], most_values(values.dtype.itemsize))
    gradient_scale = _power_for(_largest(gradient) * (terms * _largest(values)).clamp_min(1))
    beside_gradient, beside_queries = _power_for(_largest(table)), _table_scale(queries, table)
    content, content_scale = _scaled_content(content)
    return BackwardOperands(
        _times(gradient, gradient_scale),
        _times(table, beside_gradient),
        _times(table, beside_queries),
        content,
        of_queries=torch.stack([1 / (gradient_scale * beside_gradient), beside_gradient / content_scale]),
        of_table=1 / gradient_scale,
        of_values=1 / (gradient_scale * beside_queries),
    )


def unscaled(gradient: Tensor, table: Tensor, content: Tensor | None) -> BackwardOperands:
    """For dtypes that need no scales."""
    return BackwardOperands(gradient, table, table, content)


def _table_scale(queries: Tensor, table: Tensor) -> Tensor:
    """For which no S leaves the range, nor the table itself."""
    terms = min(queries.shape[3], K)
    return _power_for(_largest(table) * (terms * _largest(queries)).clamp_min(1))


def _scaled_content(content: Tensor | None) -> tuple[Tensor | None, Tensor | float]:
    if content is None:
        return None, 1.0
    scale = _power_for(_largest(content))
    return _times(content, scale), scale


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude in x, a tensor of one number in float32."""
    return x.abs().amax().float()


def _power_for(bound: Tensor) -> Tensor:
    """The greatest power of two within 2^-40 and 2^40 with which `bound` stays below 2^15; 1 for 0, inf and NaN."""
    _, exponent = torch.frexp(torch.where(bound.isfinite() & (bound > 0), bound, 2.0 ** (_TOP - 1)))
    exponent = (_TOP - exponent).clamp(-_FARTHEST, _FARTHEST)
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)  # by its bits: a GPU's pow may round


def _times(x: Tensor, scale: Tensor) -> Tensor:
    return (x * scale).to(torch.float16)
