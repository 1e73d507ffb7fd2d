# mypy: allow-untyped-defs
"""A single-program kernel that computes the powers of two of `scaling` from the operands' maximum magnitudes."""

import triton
import triton.language as tl

from lambdanets.ops.position.fused import scaling

_SLOT = tl.constexpr(scaling.SLOT)
_MULTIPLIERS = tl.constexpr(scaling.TABLE_FOR_LOGITS)


@triton.jit
def exponent(bound):
    """The largest exponent e in [-40, 40] with bound * 2^e below 2^15; 0 for inf and NaN.

    Larger exponents could make the product of two scales overflow float32.
    """
    bits = bound.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    found = tl.where(bits < 0x7F800000, 15 + 126 - (bits >> 23), 0)
    return tl.minimum(tl.maximum(found, -40), 40)


@triton.jit
def power(exponent):
    """2^exponent, from its bits, because pow and division on a GPU may round."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["query_terms", "value_terms"])
def compute_scales(
    largest_ptr,  # of table, queries, content, grad_output, values; results for missing ones are not read
    scales_ptr,
    query_terms,
    value_terms,
):
    table_max = tl.load(largest_ptr)
    table_for_grad_queries = exponent(table_max)
    # keeps both S and the scaled table in range
    table_for_logits = exponent(table_max * tl.maximum(query_terms * tl.load(largest_ptr + 1), 1.0))
    content = exponent(tl.load(largest_ptr + 2))
    grad_output = exponent(tl.load(largest_ptr + 3) * tl.maximum(value_terms * tl.load(largest_ptr + 4), 1.0))
    # forward
    tl.store(scales_ptr, power(-table_for_logits))
    tl.store(scales_ptr + 1, power(table_for_logits - content))
    # grad_queries
    tl.store(scales_ptr + _SLOT, power(-grad_output - table_for_grad_queries))
    tl.store(scales_ptr + _SLOT + 1, power(table_for_grad_queries - content))
    # grad_table, grad_values
    tl.store(scales_ptr + 2 * _SLOT, power(-grad_output))
    tl.store(scales_ptr + 3 * _SLOT, power(-grad_output - table_for_logits))
    # factors of the operands
    tl.store(scales_ptr + _MULTIPLIERS, power(table_for_logits))
    tl.store(scales_ptr + _MULTIPLIERS + 1, power(content))
    tl.store(scales_ptr + _MULTIPLIERS + 2, power(table_for_grad_queries))
    tl.store(scales_ptr + _MULTIPLIERS + 3, power(grad_output))
