"""The fused position interaction on a GPU: right, the same every time, and how fast beside what else there is.

    PYTHONPATH=src python benchmarks/gpu.py --out runs/gpu [--skip compiled tiles] [--minutes 8.5]

Needs torch with CUDA and Triton. Writes gpu.json into the folder after every part; prints what it writes. A failure is
recorded and does not stop the rest. No part starts another measurement when the minutes are over.
"""

import argparse
import json
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_methods import DEVICE, HEADS, make_inputs, methods_of, rotated, time_of
from torch import Tensor

from lambdanets.ops import position_interaction
from lambdanets.ops.position import fused
from lambdanets.ops.position.fused import launches
from lambdanets.ops.position.fused.tiles import Tiles, halved, tables, tiles_of
from lambdanets.ops.position.problem import Problem, Wanted

# batch, side, side, scope (None = global)
CORRECTNESS_SHAPES = [(5, 9, 11, 5), (3, 28, 28, 23), (2, 14, 14, None), (1, 40, 40, 23)]
# side, v, scope, batch
TIMED_SHAPES = [
    (56, 16, 23, 128),
    (56, 32, 23, 128),
    (28, 32, 23, 128),
    (28, 64, 23, 128),
    (14, 64, 23, 128),
    (14, 128, 23, 128),
    (7, 128, 23, 128),
    (28, 32, None, 128),
    (28, 64, None, 128),
    (64, 64, None, 16),
    (64, 64, 23, 1),
    (64, 64, None, 1),
]
# Other sizes that compile without spilling on 9.0, to be timed beside those of the table: kernel, tiles.
OTHER_TILES = [
    ("forward_lambda_order", Tiles(8, 128, 32, 16, 4, 3)),
    ("forward_lambda_order", Tiles(8, 128, 32, 32, 4, 3)),
    ("forward_lambda_order", Tiles(8, 256, 32, 64, 8, 3)),
    ("forward_lambda_order", Tiles(8, 128, 32, 128, 4, 3)),
    ("forward_query_order", Tiles(16, 32, 32, 16, 8, 2)),
    ("forward_query_order", Tiles(16, 16, 32, 16, 4, 3)),
    ("forward_query_order", Tiles(16, 16, 32, 32, 4, 3)),
    ("forward_query_order", Tiles(8, 16, 32, 64, 4, 3)),
    ("queries_gradient", Tiles(16, 16, 32, 32, 4, 3)),
    ("queries_gradient", Tiles(8, 16, 32, 64, 4, 3)),
    ("values_gradient", Tiles(64, 32, 8, 16, 8, 3)),
    ("values_gradient", Tiles(64, 16, 8, 32, 4, 3)),
    ("values_gradient", Tiles(32, 32, 16, 32, 8, 2)),
    ("values_gradient", Tiles(32, 16, 8, 64, 4, 3)),
    ("table_parts", Tiles(8, 16, 64, 32, 4, 2)),
    ("table_parts", Tiles(8, 16, 32, 64, 4, 3)),
]


class Report:
    """Results by part, written as they come; the failures; the time that is left."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.path = folder / "gpu.json"
        self.end = time.monotonic() + 60 * minutes
        self.results: dict[str, Any] = {"failures": []}

    def over(self) -> bool:
        return time.monotonic() > self.end

    def add(self, part: str, row: dict[str, Any]) -> None:
        self.results.setdefault(part, []).append(row)
        print(part, json.dumps(row), flush=True)

    @contextmanager
    def recording(self, part: str, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            lines = traceback.format_exc().strip().splitlines()
            self.results["failures"].append(
                {"part": part, "what": what, "error": repr(error)[:500], "trace": lines[-6:]}
            )
            print("FAILED", part, what, repr(error)[:300], flush=True)

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.results, indent=1))


def output_of(*command: str) -> str | None:
    """What a command prints, None where it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def describe(report: Report) -> None:
    """Versions, hardware, and two rates that all times are to be seen against."""
    import triton

    device = torch.cuda.get_device_properties(0)
    row = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "device": device.name,
        "capability": torch.cuda.get_device_capability(),
        "processors": device.multi_processor_count,
        "memory_gib": round(device.total_memory / 2**30, 1),
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"),
        "commit": output_of("git", "rev-parse", "HEAD"),
    }
    square = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    seconds = time_of([lambda: square @ square])["graph_us"] / 1e6
    row["matrix_product_tflops"] = round(2 * 8192**3 / seconds / 1e12)
    much = torch.empty(1 << 30, device=DEVICE, dtype=torch.uint8)
    to = torch.empty_like(much)
    row["copy_gbytes"] = round(2 * much.numel() / time_of([lambda: to.copy_(much)])["graph_us"] / 1e3)
    report.add("machine", row)


@contextmanager
def using(kernel: str, tiles: Tiles) -> Iterator[None]:
    """The kernel launched with these tiles, all others with theirs."""

    def choose(name: str, *sizes: int) -> Tiles:
        return tiles if name == kernel else tiles_of(name, *sizes)

    with mock.patch.object(launches, "tiles_of", choose):
        yield


def run_kernel(kernel: str, inputs: list[Tensor], problem: Problem) -> Tensor:
    """The result to which a kernel leads."""
    queries, table, values, gradient = inputs
    if kernel.startswith("forward"):
        return fused.forward_in_order(kernel.split("_")[1], queries, table, values, problem)
    wanted = Wanted(*(kernel == name for name in ("queries_gradient", "table_parts", "values_gradient")))
    found = fused.gradients(gradient, queries, table, values, problem, wanted)
    return next(x for x in found if x is not None)


def exact_results(inputs: list[Tensor], problem: Problem) -> dict[str, Tensor]:
    """What each kernel leads to, in float64."""
    queries, table, values, gradient = (x.double() for x in inputs)
    for x in (queries, table, values):
        x.requires_grad_()
    output = position_interaction(queries, table, values, problem.grid, algorithm="lambda_order")
    of_queries, of_table, of_values = torch.autograd.grad(output, (queries, table, values), gradient)
    return {
        "forward_lambda_order": output.detach(),
        "forward_query_order": output.detach(),
        "queries_gradient": of_queries,
        "table_parts": of_table,
        "values_gradient": of_values,
    }


@contextmanager
def new_tensors_full_of_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(report: Report) -> None:
    """Every configuration of every kernel, in every dtype, against float64; 20 repeats, which must be bit-equal."""
    architecture = torch.cuda.get_device_capability()[0]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        configurations = [
            (kernel, tiles)
            for kernel, rows in tables(architecture, dtype.itemsize).items()
            for whole in rows
            for tiles in dict.fromkeys((whole, halved(kernel, whole)))
        ]
        for v in sorted({tiles.values for _, tiles in configurations}):
            for shape in CORRECTNESS_SHAPES:
                if report.over():
                    return
                inputs, problem = make_inputs(*shape, v, dtype)
                exact = exact_results(inputs, problem)
                for kernel, tiles in configurations:
                    if tiles.values != v and (tiles.values, v) != (64, 128):
                        continue
                    what = f"{kernel} {astuple(tiles)} {dtype} {shape}"
                    with report.recording("check", what), new_tensors_full_of_nan(), using(kernel, tiles):
                        first = run_kernel(kernel, inputs, problem)
                        error = ((first.double() - exact[kernel]).norm() / exact[kernel].norm()).item()
                        equal = all(torch.equal(first, run_kernel(kernel, inputs, problem)) for _ in range(20))
                        allowed = torch.finfo(dtype).eps * (4 if dtype == torch.float32 else 1)
                        row = {"kernel": kernel, "tiles": astuple(tiles), "dtype": str(dtype), "shape": shape}
                        report.add("check", row | {"error": error, "right": error <= allowed, "bit_equal": equal})


def time_methods(report: Report, part: str, training: bool, compiled: bool) -> None:
    """Every method at every shape."""
    for side, v, scope, batch in TIMED_SHAPES:
        shape = f"{side}x{side} v={v} r={scope} b={batch}"
        with report.recording(part, shape):
            sets, problem = rotated(partial(make_inputs, batch, side, side, scope, v, torch.bfloat16))
            for name, calls in methods_of(sets, problem, training, compiled).items():
                if report.over():
                    return
                with report.recording(part, f"{shape} {name}"):
                    torch.compiler.reset()
                    report.add(part, {"shape": shape, "method": name} | time_of(calls()))
                torch.cuda.empty_cache()


def time_kernels(report: Report) -> None:
    """Each gradient kernel by itself with the tiles of the table, and all kernels with others."""
    architecture = torch.cuda.get_device_capability()[0]
    for side, v, scope, batch in TIMED_SHAPES[:9]:
        sets, problem = rotated(partial(make_inputs, batch, side, side, scope, v, torch.bfloat16))
        mine = [
            (kernel, tiles_of(kernel, architecture, 2, batch, HEADS, side**2, v)) for kernel in tables(architecture, 2)
        ]
        for kernel, tiles in [*mine, *((kernel, tiles) for kernel, tiles in OTHER_TILES if tiles.values == v)]:
            if report.over():
                return
            what = f"{side}x{side} v={v} r={scope} b={batch}"
            with report.recording("tiles", f"{what} {kernel} {astuple(tiles)}"), using(kernel, tiles):
                calls = [partial(run_kernel, kernel, x, problem) for x in sets]
                row = {
                    "shape": what,
                    "kernel": kernel,
                    "tiles": astuple(tiles),
                    "of_the_table": (kernel, tiles) in mine,
                }
                report.add("tiles", row | time_of(calls))


PARTS: dict[str, Callable[[Report], None]] = {
    "machine": describe,
    "check": check,
    "forward": lambda report: time_methods(report, "forward", training=False, compiled=False),
    "training": lambda report: time_methods(report, "training", training=True, compiled=False),
    "tiles": time_kernels,
    "compiled_forward": lambda report: time_methods(report, "compiled_forward", training=False, compiled=True),
    "compiled_training": lambda report: time_methods(report, "compiled_training", training=True, compiled=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--skip", nargs="*", default=[], choices=list(PARTS))
    parser.add_argument("--minutes", type=float, default=8.5)
    arguments = parser.parse_args()
    report = Report(arguments.out, arguments.minutes)
    for name, part in PARTS.items():
        if name in arguments.skip:
            continue
        start = time.monotonic()
        with report.recording(name, "whole part"):
            part(report)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
        report.write()
    checked = report.results.get("check", [])
    good = sum(row["right"] and row["bit_equal"] for row in checked)
    print(f"{good} of {len(checked)} checks right and bit-equal; {len(report.results['failures'])} failures")


if __name__ == "__main__":
    main()
