"""Runs the self-test on one tiny problem in Triton's interpreter, with a fault injected into a kernel.

Arguments: FAULT, then the arguments of the self-test. This script runs in a subprocess, because TRITON_INTERPRET=1 must
be set before Triton is imported, and because some faults kill the process.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from lambdanets.ops.position.fused import forward_kernels, gradient_kernels, self_test


def patch_bfloat16_dot():
    """Patch tl.dot of the interpreter to support bfloat16, which the interpreter stores as integers."""
    create_dot = InterpreterBuilder.create_dot

    def to_float32(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    InterpreterBuilder.create_dot = lambda self, a, b, *rest: create_dot(self, to_float32(a), to_float32(b), *rest)


class FaultyKernel:
    """Wraps a kernel; launches call a fault function with the launcher and its arguments."""

    def __init__(self, kernel, fault):
        self.kernel, self.fault = kernel, fault

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.fault(self.kernel[grid], *arguments, **constants)


def raise_error(launch, *arguments, **constants):
    raise RuntimeError("out of resource: shared memory,\n Required: 303104, Hardware limit: 232448")


def change_one_element(launch, *arguments, **constants):
    launch(*arguments, **constants)
    output = arguments[4]
    if output.dtype == torch.bfloat16:
        output[0, 0, 0, 7] += 4


def leave_one_element_unwritten(launch, *arguments, **constants):
    output = arguments[4]
    before = output[0, 0, 0, 7].clone()
    launch(*arguments, **constants)
    if output.dtype == torch.bfloat16:
        output[0, 0, 0, 7] = before


def hang(launch, *arguments, **constants):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(os.environ["LAMBDANETS_CACHE"], "pid").write_text(str(os.getpid()))
    time.sleep(600)


def crash(launch, *arguments, **constants):
    os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    fault, *arguments = sys.argv[1:]
    patch_bfloat16_dot()
    self_test.CASES = (self_test.Case(1, 2, (2, 3), (3, 3), 16, 16),)
    forward, backward = {
        "none": (None, None),
        "raises": (raise_error, None),
        "wrong_in_bfloat16": (change_one_element, leave_one_element_unwritten),
        "hangs": (hang, None),
        "crashes": (None, crash),
    }[fault]
    if forward:
        forward_kernels.forward_query_order = FaultyKernel(forward_kernels.forward_query_order, forward)
    if backward:
        gradient_kernels.grad_queries = FaultyKernel(gradient_kernels.grad_queries, backward)
    sys.exit(self_test.main(arguments))
