"""Runs the engine's C code with sanitizers on random problems, and compares it with another algorithm in float64.

python native/sanitize.py --problems 2000

The code runs in its own process (run_problems.c), on buffers with exactly the size of each tensor; working memory is
filled with NaN, with gaps that may not be touched. The process is stopped by AddressSanitizer (also by leaks) or
UndefinedBehaviorSanitizer; with --sanitizers thread by races. --first and --problems 1 repeat a problem.

Exit codes: 0 everything is correct, 1 an error was found, 2 no compiler has the sanitizers.
"""

import argparse
import ctypes
import itertools
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from libraries import FLAGS, LIBRARIES, SOURCES, object_commands, run_all
from torch import Tensor

from lambdanets.ops.position import native
from lambdanets.ops.position.algorithm import NeedsGrad, Problem
from lambdanets.ops.position.native_lengths import Transforms, cheapest_axis, choose_transforms

OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:max_malloc_fill_size=1073741824:malloc_fill_byte=255",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
NAMES = ("output", "gradient of queries", "of the table", "of values", "of content")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}  # relative to the norm; rounding has a tenth of it
MAX_WORK = 300_000  # points of transforms, times pairs of query depths and blocks of value channels


class ProblemError(Exception):
    pass


class Process:
    """Stands for a `native.Library`, but runs problems in another process."""

    name = "sanitized"

    def __init__(self, command: Sequence[str | Path], lanes: Sequence[int]) -> None:
        self.lanes, self.threads = lanes, 1
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
        self.process = subprocess.Popen(command, env=os.environ | OPTIONS, **pipes)

    def scratch_bytes(self, problem: native._Problem, kernel: int) -> int:
        return 0

    def transform_tables(self, problem: native._Problem, is_float: bool) -> None:
        self.run(problem, 3 if is_float else 4)

    def run(self, problem: native._Problem, kernel: int) -> None:
        buffers = list(describe_buffers(problem, kernel))
        sizes = [size if address else 0 for address, size in buffers]
        message = [struct.pack("=2i17Q", kernel, self.threads, *sizes), bytes(problem)]
        message += [ctypes.string_at(address, size) for (address, _), size in zip(buffers, sizes, strict=True)]
        try:
            self.process.stdin.write(b"".join(message))
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ProblemError(self.close()) from None
        answer = self.process.stdout.read(4 + sum(sizes[10:]))
        if len(answer) < 4 + sum(sizes[10:]):
            raise ProblemError(self.close())
        if answer[:4] != bytes(4):
            raise ProblemError("memory ran out")
        at = 4
        for (address, _), size in zip(buffers[10:], sizes[10:], strict=True):
            ctypes.memmove(address, answer[at : at + size], size)
            at += size

    def close(self) -> str:
        """End the process; return what it reported."""
        self.process.stdin.close()
        code = self.process.wait()
        self.log.seek(0)
        report = self.log.read().decode(errors="replace")
        return report or (f"exit code {code}" if code else "")


def describe_buffers(p: native._Problem, kernel: int) -> Iterator[tuple[int | None, int]]:
    """Address and bytes of each buffer, in the order of run_problems.c."""
    itemsize = 8 if kernel in (native.FLOAT64, 4) else 4
    twiddle = 2 * (4 if kernel < native.FLOAT64 else 8)

    def extent(*axes: tuple[int, int]) -> int:
        return itemsize * (1 + sum((count - 1) * stride for count, stride in axes))

    n = p.depth * p.H * p.W
    points = p.axes[0].n * p.axes[1].n
    spectra = 2 * itemsize * p.depth_scope * p.u * p.pairs * points
    sides = [before + 1 + after for before, after in zip(p.before, p.after, strict=True)]
    table = itemsize * p.depth_scope * math.prod(sides) * p.k * p.u
    for axis in p.axes:
        yield axis.twiddles[0], twiddle * axis.n
        yield axis.twiddles[1], twiddle * axis.n // axis.f[0]
    yield p.queries, extent((p.b, p.qs_b), (p.h, p.qs_h), (n, p.qs_n), (p.k, p.qs_k))
    yield p.values, extent((p.b, p.vs_b), (p.u, p.vs_u), (n, p.vs_n), (p.v, p.vs_v))
    yield p.content, extent((p.b, p.cs_b), (p.k, p.cs_k), (p.v, 1))
    yield p.cross, twiddle * points
    yield p.table, table
    yield p.grad_output, extent((p.b, p.gs_b), (p.h, p.gs_h), (n, p.gs_n), (p.v, p.gs_v))
    yield p.spectrum, spectra
    yield p.output, extent((p.b, p.os_b), (p.h, p.os_h), (n, p.os_n), (p.v, p.os_v))
    yield p.grad_queries, extent((p.b, p.dq_b), (p.h, p.dq_h), (n, p.dq_n), (p.k, p.dq_k))
    yield p.grad_values, extent((p.b, p.dv_b), (p.u, p.dv_u), (n, p.dv_n), (p.v, p.dv_v))
    yield p.grad_spectra, spectra
    yield p.grad_content, itemsize * p.b * p.k * p.v
    yield p.grad_table, table


def random_problem(r: random.Random) -> Problem:
    dims = r.choice((1, 1, 2, 2, 2, 3))
    longest = {1: r.choice((70, 70, 3000)), 2: 70, 3: r.choice((12, 30))}[dims]
    grid = [r.randint(1, longest) for _ in range(dims)]
    if dims == 2 and r.random() < 0.05:
        grid[r.randrange(2)] = r.randint(130, 700)  # transforms of three passes
    if dims == 3:
        grid[0] = min(grid[0], r.randint(1, 6))
    before, after = ([r.randint(0, min(side - 1, r.choice((1, 4, side)))) for side in grid] for _ in range(2))
    b, h, k, v, u = (
        r.randint(1, 3),
        r.randint(1, 4),
        r.randint(1, 9),
        r.choice((r.randint(1, 40), 8, 16)),
        r.randint(1, 3),
    )
    dtype = r.choice((torch.float32, torch.float32, torch.float64))
    sizes = tuple(grid), k, v, u, tuple(before), tuple(after)
    return Problem(b, h, *sizes, False, dtype, "cpu", channels_first=r.random() < 0.5)


def random_transforms(
    r: random.Random, sides: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> Transforms:
    """Tiles also of small maps, with transforms of any length that is long enough."""
    if len(sides) == 1:
        tile = r.randint(1 + sides[0] // 8, sides[0])
        first = cheapest_axis(r.randint(4, 20))
        return Transforms((tile,), (first, cheapest_axis(max(4, -(-(tile + before[0] + after[0]) // first.n)))))
    tile = tuple(r.randint(1 + side // 3, side) for side in sides)
    axes = [cheapest_axis(t + b + a + r.randint(0, 3)) for t, b, a in zip(tile, before, after, strict=True)]
    return Transforms(tile, (axes[0], axes[1]))


def with_random_strides(r: random.Random, x: Tensor) -> Tensor:
    """The same values, with axes in another order in memory, and gaps."""
    order = r.sample(range(x.ndim), x.ndim)
    gaps = [r.choice((0, 0, 1, 3)) for _ in order]
    large = x.new_full([x.shape[i] + gap for i, gap in zip(order, gaps, strict=True)], math.nan)
    view = large[tuple(slice(x.shape[i]) for i in order)].permute([order.index(i) for i in range(x.ndim)])
    return view.copy_(x)


class Transform(torch.autograd.Function):
    """A unitary transform by NumPy: those of PyTorch 2.14 corrupt memory if they use one thread."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], inverse: bool) -> Tensor:
        ctx.axes, ctx.inverse = axes, inverse
        transform = np.fft.ifftn if inverse else np.fft.fftn
        return torch.from_numpy(transform(x.resolve_conj().numpy(), axes=axes, norm="ortho"))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return Transform.apply(grad, ctx.axes, not ctx.inverse), None, None


def exact_output(p: Problem, queries: Tensor, table: Tensor, values: Tensor, content: Tensor) -> Tensor:
    """The output by transforms along all axes, from float64 with gradients."""
    axes = tuple(range(1, 1 + len(p.grid)))
    sides = [sum(sizes) for sizes in zip(p.grid, p.before, p.after, strict=True)]

    def transform(x: Tensor) -> Tensor:
        padded = x.new_zeros(len(x), *sides, *x.shape[-2:], dtype=torch.complex128)
        padded[:, *(slice(side) for side in x.shape[1:-2])] = x
        return Transform.apply(padded, axes, False)

    spectra, table = transform(values.unflatten(1, p.grid)), transform(table[None]).conj()
    products = (spectra.unsqueeze(-3) * table.unsqueeze(-2)).sum(-1) * math.prod(sides) ** 0.5
    lambdas = Transform.apply(products, axes, True).real.roll(p.before, axes)
    lambdas = lambdas[:, *(slice(side) for side in p.grid)].flatten(1, -3)
    return torch.einsum("bhnk,bnkv->bhnv", queries, lambdas + content[:, None])


def check_problem(process: Process, seed: int) -> bool:
    """Run a problem forward and backward; return False if it is too large. Raises ProblemError."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    p = random_problem(r)
    process.threads = r.randint(1, 5)
    native.load_library = lambda: process
    native._L2_BYTES, native._STREAMED_BYTES = 1 << r.choice((12, 20)), r.choice((0, 1 << 24))
    tiled = r.random() < 0.4
    native.choose_transforms = (lambda *sides: random_transforms(r, *sides)) if tiled else choose_transforms
    engine = native.Native(p)
    needs_grad = NeedsGrad(*r.choice([flags for flags in itertools.product((False, True), repeat=4) if any(flags)]))
    text = f"problem {seed}: {p}, {engine.transforms}, {needs_grad}, {process.threads} threads, {process.lanes} lanes"
    tasks = p.batch * engine.num_tiles * -(-p.value_depth // engine.lanes)
    points = engine.full[0] * math.prod(axis.n for axis in engine.transforms.axes)
    if points * p.intra_depth * (p.query_depth + 1) // 2 * tasks > MAX_WORK:
        return False
    (b, h, k, v, u), n = (
        (p.batch, p.heads, p.query_depth, p.value_depth, p.intra_depth),
        p.num_positions,
    )
    shapes = (b, h, n, k), (*p.scope, k, u), (b, n, v, u), (b, k, v)
    factors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    expected = exact_output(p, *factors)
    grad_output = torch.randn(expected.shape, dtype=torch.float64)
    expected = [expected, *torch.autograd.grad(expected, factors, grad_output)]
    queries, _, values, content = (with_random_strides(r, x.detach().to(p.dtype)) for x in factors)
    try:
        operands = (queries, engine.prepare(factors[1].detach().to(p.dtype)), values, content)
        output = engine.forward(*operands)
        gradients = list(engine.backward(with_random_strides(r, grad_output.to(p.dtype)), *operands, needs_grad))
    except ProblemError as failure:
        raise ProblemError(f"{text}\n{failure}") from None
    if gradients[1] is not None:
        gradients[1] = engine.grad_table(gradients[1])
    for name, actual, exact in zip(NAMES, (output, *gradients), expected, strict=False):
        if actual is not None:
            scale = exact.norm().item()
            if name == NAMES[2]:  # a table of few numbers may cancel: take the norm that is expected
                scale = max(scale, math.sqrt(exact.numel() * b * h * n * v))
            error = (actual - exact).norm().item() / scale
            if not error < TOLERANCE[p.dtype]:
                raise ProblemError(f"{text}\nrelative error of {name}: {error:.1e}")
    return True


def find_compiler(flags: Sequence[str], folder: Path) -> str | None:
    """The first compiler with the libraries of the sanitizers; zig has no AddressSanitizer."""
    (folder / "empty.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    for name in ("clang", "gcc", "cc"):
        program = folder / f"empty_{name}"
        compile_empty = [name, *flags, str(folder / "empty.c"), "-o", str(program)]
        if shutil.which(name) and subprocess.run(compile_empty, capture_output=True).returncode == 0:
            return name
    return None


def build(compiler: str, flags: Sequence[str], lanes: Sequence[int], folder: Path) -> str:
    name = "lanes_" + "_".join(map(str, lanes))
    base = [compiler, *FLAGS, *flags]
    commands = object_commands(base, lanes, folder, name)
    run_all(commands)
    objects = [command[-1] for command in commands]
    run_all([[*base, str(SOURCES / "run_problems.c"), *objects, "-lpthread", "-o", str(folder / name)]])
    return str(folder / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--sanitizers", default="address,undefined", help="of the compiler's option -fsanitize")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="compile only vectors of 4 numbers, and do not optimize",
    )
    parser.add_argument(
        "--command",
        help="run this command, such as an emulator and a program for ARM64 with 4 lanes",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lanes = list(dict.fromkeys(lanes for libraries in LIBRARIES.values() for *_, lanes in libraries))
    lanes = lanes[-1:] if arguments.quick or arguments.command else lanes
    flags = [
        f"-fsanitize={arguments.sanitizers}",
        "-fno-sanitize-recover=all",
        "-g",
        "-O0" if arguments.quick else "-O1",
    ]
    flags += ["-DLAMBDANETS_DEBUG"] if "address" in arguments.sanitizers else []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        if arguments.command:
            commands = [arguments.command.split()]
        else:
            compiler = find_compiler(flags, Path(name))
            if compiler is None:
                print(f"found neither clang nor gcc with the libraries for -fsanitize={arguments.sanitizers}")
                return 2
            commands = [[build(compiler, flags, x, Path(name))] for x in lanes]
            print(f"compiled by {compiler} in {time.perf_counter() - start:.0f} s", flush=True)
        processes = [Process(command, x) for command, x in zip(commands, lanes, strict=True)]
        done, seed, start = 0, arguments.first, time.perf_counter()
        try:
            while done < arguments.problems:
                done += check_problem(processes[seed % len(processes)], seed)
                seed += 1
            for process in processes:
                if report := process.close():
                    raise ProblemError(report)
        except ProblemError as failure:
            print(failure)
            return 1
    print(f"{done} problems, {arguments.first} to {seed - 1}: no errors, {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
