"""Compiles every fused kernel and checks its code: shared memory, spills, tensor cores, asynchronous loads.

    python experiments/kernels.py [--architectures 80 90] [--heads 4] [--depths 16 64] [--processes 2]

Needs Triton but no GPU. Compiles each kernel with the tiles that the launchers choose for each compute capability,
number of heads, value depth and batch, and prints failed checks. The exit code is 1 if a check fails.
"""

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from lambdanets.ops.position.fused import KERNELS
from lambdanets.ops.position.fused_sizes import WARPGROUPS, choose_constants

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
HEADS = (1, 2, 4, 8, 16)
VALUE_DEPTHS = (8, 16, 24, 32, 64, 128)
BATCHES = (1, 2, 3, 8, 128)
DTYPES = {"bfloat16": "bf16", "float32": "fp32"}
TENSOR_CORES = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")  # instructions
MAX_STACK = 32  # bytes per thread
REGISTERS = 65_536  # per streaming multiprocessor


@dataclass(frozen=True)
class Configuration:
    kernel: str
    architecture: int
    dtype: str
    constants: dict[str, int]

    def __str__(self) -> str:
        names = "TILE", "EXAMPLES", "HEADS", "STEP", "V", "num_warps", "num_stages"
        sizes = " ".join(f"{name}={self.constants[name]}" for name in names)
        return f"{self.kernel} sm_{self.architecture} {self.dtype} {sizes}"


def configurations(
    architectures: Sequence[int] = ARCHITECTURES,
    heads: Sequence[int] = HEADS,
    depths: Sequence[int] = VALUE_DEPTHS,
    dtypes: Sequence[str] = tuple(DTYPES),
    batches: Sequence[int] = BATCHES,
) -> list[Configuration]:
    """The distinct configurations that the launchers choose for these sizes."""
    distinct: dict[str, Configuration] = {}
    sizes = itertools.product(architectures, dtypes, KERNELS, heads, depths, batches)
    for architecture, dtype, kernel, h, depth, batch in sizes:
        capability, itemsize = divmod(architecture, 10), getattr(torch, dtype).itemsize
        constants = choose_constants(kernel, capability, itemsize, batch, h, depth)
        configuration = Configuration(kernel, architecture, dtype, constants)
        distinct[str(configuration)] = configuration
    return list(distinct.values())


def compile_kernel(configuration: Configuration) -> Any:
    """Compile a kernel with the arguments of a launch for 16-byte-aligned tensors, with a content lambda."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lambdanets.ops.position import fused_kernels

    function = getattr(fused_kernels, KERNELS[configuration.kernel])
    constants = configuration.constants | {"CONTENT": True}
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion")}
    signature: dict[str, str] = {}
    constexprs: dict[str, int] = {}
    attributes = {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name], constexprs[name] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            signature[name] = "*" + ("fp32" if name == "partial_ptr" else DTYPES[configuration.dtype])
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32"
    target = GPUTarget("cuda", configuration.architecture, 32)
    return triton.compile(ASTSource(function, signature, constexprs, attributes), target=target, options=options)


def max_shared_memory(capability: tuple[int, int]) -> int:
    """Maximum shared memory of a program in bytes, for compute capability 8.0 and newer."""
    if capability[0] in WARPGROUPS:
        return 227 << 10
    return (163 if capability in ((8, 0), (8, 7)) else 99) << 10


def examine(configuration: Configuration) -> tuple[list[str], int]:
    """Compile a kernel; returns the checks that its code fails, and its bytes of stack per thread."""
    warps, is_float32 = configuration.constants["num_warps"], configuration.dtype == "float32"
    try:
        code = compile_kernel(configuration)
        registers, stack = resources(code)
    except Exception as error:  # also of the CUDA tools, whose output may have another format
        return [" ".join(f"{type(error).__name__}: {error}".split())[:300]], 0
    ptx, shared_bytes = code.asm["ptx"], code.metadata.shared
    limit = max_shared_memory(divmod(configuration.architecture, 10))
    resident_programs = min((limit + 1024) // (shared_bytes + 1024), REGISTERS // (registers * 32 * warps))
    warps_per_scheduler = resident_programs * warps / 4
    # numbers of pipeline stages that are prefetched
    stages_ahead = [int(count, 0) for count in re.findall(r"cp\.async\.wait_group\s+(0x[0-9a-f]+|\d+)", ptx)]
    checks = {
        f"{shared_bytes:,} bytes of shared memory": shared_bytes > limit,
        f"{stack} bytes of stack": stack > MAX_STACK,
        "no tensor cores": not is_float32 and not any(name in ptx for name in TENSOR_CORES),
        "no asynchronous loads": not re.search(r"cp\.async\.c[ag]\.shared", ptx),
        "the loads of the next step start only after waiting for those of the current step": (
            configuration.constants["num_stages"] > 2 and not any(stages_ahead)
        ),
        f"{warps_per_scheduler} warps per scheduler": not is_float32 and warps_per_scheduler < 2,
    }
    return [reason for reason, failed in checks.items() if failed], stack


def resources(code: Any) -> tuple[int, int]:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    match = re.search(r"REG:(\d+) STACK:(\d+)", run.stdout + run.stderr)
    assert match is not None, run.stderr
    return int(match[1]), int(match[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", nargs="*", type=int, default=ARCHITECTURES)
    parser.add_argument("--heads", nargs="*", type=int, default=HEADS)
    parser.add_argument("--depths", nargs="*", type=int, default=VALUE_DEPTHS)
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    selected = configurations(arguments.architectures, arguments.heads, arguments.depths, arguments.dtypes)
    num_failed = num_spilling = 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        for configuration, (reasons, stack) in zip(selected, pool.map(examine, selected), strict=True):
            num_failed += bool(reasons)
            num_spilling += stack > 0
            if reasons or stack:
                print(f"{configuration}: {'; '.join(reasons) or f'{stack} bytes of stack, allowed'}", flush=True)
    print(f"{len(selected)} configurations, {num_failed} failed, {num_spilling} use the stack")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
