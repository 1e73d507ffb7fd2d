"""Runs the engine with sanitizers on random problems, and compares it with `query_order` in float64.

python native/sanitize.py --problems 2000

The libraries of each instruction set of this machine are compiled with AddressSanitizer and UndefinedBehaviorSanitizer,
and Python loads them. Working memory is filled with NaN. An error of a sanitizer ends the process. --first and
--problems 1 repeat a problem.

Exit codes: 0 everything is correct, 2 there is no gcc with the sanitizers, others: an error was found.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from libraries import FLAGS, LIBRARIES, PLATFORMS, object_commands, platform_of_this_machine, run_all
from torch import Tensor

from lambdanets.ops.position import native
from lambdanets.ops.position.native_lengths import Transforms, cheapest_transform, choose_transforms
from lambdanets.ops.position.position_term import compute_position_term

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
OPTIONS = {
    # Python and PyTorch keep memory until they end
    "ASAN_OPTIONS": "detect_leaks=0:max_malloc_fill_size=1073741824:malloc_fill_byte=255",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}
NAMES = ("output", "gradient of queries", "gradient of the table", "gradient of values", "gradient of content")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}  # relative to the norm; rounding has a tenth of it


def random_transforms(
    r: random.Random, sides: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> Transforms:
    """Tiles also of small maps, with transforms of any length that is long enough."""
    if len(sides) == 1:
        tile, first = r.randint(1 + sides[0] // 8, sides[0]), cheapest_transform(r.randint(4, 20))
        second = cheapest_transform(max(4, -(-(tile + before[0] + after[0]) // first.n)))
        return Transforms((1, tile), (first, second), lines=first.n)
    rows, columns = tile = [r.randint(1 + side // 3, side) for side in sides]
    lengths = [sum(sizes) + r.randint(0, 3) for sizes in zip(tile, before, after, strict=True)]
    return Transforms((rows, columns), (cheapest_transform(lengths[0]), cheapest_transform(lengths[1])), lines=rows)


def with_random_strides(r: random.Random, x: Tensor) -> Tensor:
    """The same values, with axes in another order in memory, and gaps."""
    order = r.sample(range(x.ndim), x.ndim)
    large = x.new_full([x.shape[i] + r.choice((0, 0, 1, 3)) for i in order], torch.nan)
    view = large[tuple(slice(x.shape[i]) for i in order)].permute([order.index(i) for i in range(x.ndim)])
    return view.copy_(x)


def check_problem(seed: int) -> None:
    """Run a problem forward and backward. Raises SystemExit if an error is too large."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    longest = r.choice(((500,), (60,), (40, 40), (40, 40), (40, 40), (6, 12, 12)))
    grid = tuple(r.randint(1, side) for side in longest)
    if len(grid) == 2 and r.random() < 0.05:
        grid = (r.randint(130, 700), r.randint(1, 3))  # transforms of three passes
    scope = [2 * r.randint(0, min(side, r.choice((1, 4, side)))) + 1 for side in grid]
    b, h, k, v, u = r.randint(1, 3), r.randint(1, 4), r.randint(1, 9), r.randint(1, 40), r.randint(1, 3)
    dtype, n = r.choice((torch.float32, torch.float32, torch.float64)), torch.Size(grid).numel()
    options = {"causal": r.random() < 0.2, "channels_first": r.random() < 0.5}
    shapes = (b, h, n, k), (*scope, k, u), (b, n, v, u), (b, k, v)
    is_tiled, threads = r.random() < 0.4, r.randint(1, 5)
    native.choose_transforms = (lambda *sides: random_transforms(r, *sides)) if is_tiled else choose_transforms
    factors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    grad_output = torch.randn(b, h, n, v, dtype=torch.float64)
    exact = compute_position_term(*factors, grid, causal=options["causal"], algorithm="query_order")
    expected = [exact, *torch.autograd.grad(exact, factors, grad_output)]
    inputs = [with_random_strides(r, x.detach().to(dtype)).requires_grad_(r.random() < 0.7) for x in factors]
    torch.get_num_threads = lambda: threads  # of the engine only: those of PyTorch are compiled without sanitizers
    output = compute_position_term(*inputs, grid, algorithm="native", **options)
    if output.requires_grad:
        output.backward(with_random_strides(r, grad_output.to(dtype)))
    results = [output.detach(), *(x.grad for x in inputs)]
    for name, actual, reference in zip(NAMES, results, expected, strict=True):
        if actual is not None:
            scale = float(reference.detach().norm())
            if name == NAMES[2]:  # a table of few numbers may cancel: take the norm that is expected
                scale = max(scale, (reference.numel() * b * h * n * v) ** 0.5)
            error = float((actual - reference).detach().norm()) / scale
            if not error < TOLERANCE[dtype]:
                sizes = f"{shapes}, {grid}, {options}, {dtype}, {threads} threads"
                raise SystemExit(f"problem {seed}: {sizes}\nrelative error of {name}: {error:.1e}")


def build(flags: Sequence[str], lanes: Sequence[int], folder: Path) -> Path:
    name = "lanes_" + "_".join(map(str, lanes))
    base, library = ["gcc", *flags], folder / f"{name}.so"
    commands = object_commands(base, lanes, folder, name)
    run_all(commands)
    run_all([[*base, "-shared", *(command[-1] for command in commands), "-lpthread", "-o", str(library)]])
    return library


def find_library(name: str) -> str:
    """The path of a library of gcc, or its name if there is none."""
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_problems(library: Path, problems: Sequence[int]) -> None:
    """Run problems in this process, in which the sanitizers are loaded."""
    loaded = native.Library(library)
    loaded._parallel = (None, None)  # the sanitizers do not know how threads of OpenMP wait for each other
    native.load_library = lambda: loaded
    start = time.perf_counter()
    for problem in problems:
        check_problem(problem)
    seconds = time.perf_counter() - start
    print(f"{library.stem}: {len(problems)} problems from {problems[0]}: no errors, {seconds:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--quick", action="store_true", help="only vectors of 4 numbers, not optimized")
    parser.add_argument("--compiled", type=Path, help="run the problems with this file, in this process")
    options = parser.parse_args()
    problems = range(options.first, options.first + options.problems)
    if options.compiled:
        run_problems(options.compiled, problems)
        return 0
    if shutil.which("gcc") is None or find_library("libasan.so") == "libasan.so":
        print("found no gcc with libasan.so")
        return 2
    flags = [*FLAGS, *SANITIZERS, "-g", "-O0" if options.quick else "-O1", "-DLAMBDANETS_DEBUG"]
    preloaded = f"{find_library('libasan.so')} {find_library('libstdc++.so.6')}"  # the latter for PyTorch's exceptions
    machine = PLATFORMS[platform_of_this_machine() or "manylinux_2_17_x86_64"][0]
    with tempfile.TemporaryDirectory() as folder:
        for *_, lanes in LIBRARIES[machine][-1:] if options.quick else LIBRARIES[machine]:
            numbers = ["--first", str(options.first), "--problems", str(options.problems)]
            command = [sys.executable, __file__, "--compiled", build(flags, lanes, Path(folder)), *numbers]
            if code := subprocess.run(command, env=os.environ | OPTIONS | {"LD_PRELOAD": preloaded}).returncode:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
