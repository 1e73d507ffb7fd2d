# mypy: allow-untyped-defs
"""A kernel with a single program that computes the scales of `scaling` from the maximum magnitudes of the operands."""

import triton
import triton.language as tl


@triton.jit
def exponent(bound):
    """Return the largest exponent e in [-40, 40] with bound * 2^e < 2^15; 0 for inf and NaN.

    The product of two scales with larger exponents could overflow float32.
    """
    bits = bound.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.where(bits < 0x7F800000, 15 + 126 - (bits >> 23), 0)
    return tl.minimum(tl.maximum(largest, -40), 40)


@triton.jit
def power_of_2(exponent):
    """Compute 2^exponent from its bits, because pow and division may be inexact on a GPU."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["query_terms", "value_terms", "heads"])
def compute_scales(
    maxima_ptr,  # maxima of table, queries, content, grad_output and values; unused for operands that are None
    scales_ptr,
    query_terms,
    value_terms,
    heads,
    SLOT: tl.constexpr,
    OPERANDS: tl.constexpr,  # index of the scales of the operands
):
    table_max = tl.load(maxima_ptr)
    table_for_grad_queries = exponent(table_max)
    # Both S and the scaled table stay in range.
    table_for_logits = exponent(table_max * tl.maximum(query_terms * tl.load(maxima_ptr + 1), 1.0))
    content = exponent(tl.load(maxima_ptr + 2))
    # Both T, a sum over v, and the gradient of the lambdas, a sum over heads, stay in range.
    factor = tl.maximum(value_terms * tl.load(maxima_ptr + 4), heads * tl.load(maxima_ptr + 1))
    grad_output = exponent(tl.load(maxima_ptr + 3) * tl.maximum(factor, 1.0))
    # forward
    tl.store(scales_ptr, power_of_2(-table_for_logits))
    tl.store(scales_ptr + 1, power_of_2(table_for_logits - content))
    # grad_queries
    tl.store(scales_ptr + SLOT, power_of_2(-grad_output - table_for_grad_queries))
    tl.store(scales_ptr + SLOT + 1, power_of_2(table_for_grad_queries - content))
    # grad_table, grad_values
    tl.store(scales_ptr + 2 * SLOT, power_of_2(-grad_output))
    tl.store(scales_ptr + 3 * SLOT, power_of_2(-grad_output - table_for_logits))
    # scales of the operands
    tl.store(scales_ptr + OPERANDS, power_of_2(table_for_logits))
    tl.store(scales_ptr + OPERANDS + 1, power_of_2(content))
    tl.store(scales_ptr + OPERANDS + 2, power_of_2(table_for_grad_queries))
    tl.store(scales_ptr + OPERANDS + 3, power_of_2(grad_output))
