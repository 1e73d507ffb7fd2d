"""A Triton kernel that reads a tensor many times, to measure the bandwidth of the L2 cache."""

import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def read_repeatedly(x_ptr, sums_ptr, programs, repeats, BLOCK: tl.constexpr):  # noqa: N803
    """Store, for each program, the sum over `repeats` of the blocks after its own; ".cg" bypasses the L1 cache."""
    program = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(repeats):
        block = (program + i) % programs
        total += tl.load(x_ptr + block * BLOCK + offsets, cache_modifier=".cg")
    tl.store(sums_ptr + program, tl.sum(total))
