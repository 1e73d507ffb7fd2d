# mypy: allow-untyped-defs
"""The powers of two of `scaling` from the largest magnitudes of the operands: one program, one launch."""

import triton
import triton.language as tl

from lambdanets.ops.position.fused import scaling

_SLOT = tl.constexpr(scaling.SLOT)
_MULTIPLIERS = tl.constexpr(scaling.BESIDE_QUERIES)


@triton.jit
def exponent(bound):
    """The largest e, -40 to 40, with bound 2^e below 2^15; 0 for inf and NaN.

    Larger exponents could take the product of two scales out of the range of float32.
    """
    bits = bound.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    found = tl.where(bits < 0x7F800000, 15 + 126 - (bits >> 23), 0)
    return tl.minimum(tl.maximum(found, -40), 40)


@triton.jit
def power(exponent):
    """2^exponent, by its bits: a GPU's pow and division may round."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["query_terms", "value_terms"])
def scales_of(
    largest_ptr,  # of table, queries, content, gradient, values; results of what is missing are not read
    scales_ptr,
    query_terms,
    value_terms,
):
    largest_of_table = tl.load(largest_ptr)
    beside_gradient = exponent(largest_of_table)
    # for which no S leaves the range, nor the table itself
    beside_queries = exponent(largest_of_table * tl.maximum(query_terms * tl.load(largest_ptr + 1), 1.0))
    content = exponent(tl.load(largest_ptr + 2))
    gradient = exponent(tl.load(largest_ptr + 3) * tl.maximum(value_terms * tl.load(largest_ptr + 4), 1.0))
    # forward
    tl.store(scales_ptr, power(-beside_queries))
    tl.store(scales_ptr + 1, power(beside_queries - content))
    # gradient of the queries
    tl.store(scales_ptr + _SLOT, power(-gradient - beside_gradient))
    tl.store(scales_ptr + _SLOT + 1, power(beside_gradient - content))
    # of the table, of the values
    tl.store(scales_ptr + 2 * _SLOT, power(-gradient))
    tl.store(scales_ptr + 3 * _SLOT, power(-gradient - beside_queries))
    # what operands are multiplied by
    tl.store(scales_ptr + _MULTIPLIERS, power(beside_queries))
    tl.store(scales_ptr + _MULTIPLIERS + 1, power(content))
    tl.store(scales_ptr + _MULTIPLIERS + 2, power(beside_gradient))
    tl.store(scales_ptr + _MULTIPLIERS + 3, power(gradient))
