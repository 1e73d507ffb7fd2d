"""Checks and times fused kernels, layers and networks on a GPU, in 8 minutes.

First command. PyTorch with CUDA and Triton must be installed; the other packages' layers are optional:

    export PYTHONPATH=src:lab PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=runs/triton
    python experiments/gpu.py --out runs/gpu

| part | what it gives |
|---|---|
| machine | versions and hardware |
| compile | all kernels, on all cores |
| self_test | the check of every kernel in bfloat16 and float32: what `auto` may use |
| check | the position terms of LambdaResNet-50 at batch 128 first, then edges; 10 runs bit-identical |
| layers | 3x3 convolution, lambda layers by algorithm, layers of other packages; peak memory |
| networks | four networks, inference and training, eager and as a CUDA graph |
| kernels | microseconds of each kernel |
| smoke | unusual layers against query_order in float32 |

Second command, after the first or after a change, with the parts that are wanted again:

    python experiments/gpu.py --out runs/gpu2 --parts kernels --minutes 3

`--table runs/gpu/gpu.jsonl` prints measured times and everything that failed.

Each part runs in its own process and ends at its limit. It yields measurements: names, and functions that return the
columns of a row. A measurement that raises is named in a row, and the next one runs; a corrupted CUDA context ends the
part. Rows go to gpu.jsonl as they come, standard error to errors.txt. Without a GPU, the script tries tiny problems in
Triton's interpreter (NumPy below 2.4 with Triton 3.6).
"""

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from lambdanets import LambdaLayer2d, create_model
from lambdanets.ops.position import fused_check
from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.fused import KERNELS, Fused
from lambdanets.ops.position.fused_check import TOLERANCES, Case, Example, max_relative_error
from lambdanets.ops.position.position_term import make_plan
from lambdanets.ops.tables import crop_to_grid
from lambdanets.provenance import commit, hardware
from lambdanets_lab.benchmark.measurement import relative_error
from lambdanets_lab.benchmark.peers import PEERS, build_peer, installed_version

Row = dict[str, Any]
Measurements = Iterable[tuple[str, Callable[[], Row]]]
Shape = tuple[int, int, int | None, int]  # side of the map, value depth, scope (None: global), batch

SECONDS_TO_STOP = 10  # for the last case of a part after its time limit
MAX_LENGTH = 160  # of a failure in the table
ON_GPU = torch.cuda.is_available()
DEVICE, DEVICE_TYPE = ("cuda:0", "cuda") if ON_GPU else ("cpu", "cpu")
HEADS, QUERY_DEPTH = 4, 16
# Layers of LambdaResNet-50 at 224 pixels, and others
SHAPES: list[Shape] = [(56, 16, 23, 128), (28, 32, 23, 128), (14, 64, 23, 128), (7, 128, 23, 128)]
MORE_SHAPES: list[Shape] = [
    (56, 32, 23, 128),
    (28, 64, 23, 128),
    (28, 64, None, 128),
    (64, 64, 23, 1),
    (64, 64, None, 16),
    (128, 64, None, 1),
]
DTYPES = [torch.bfloat16, torch.float32]
CHECKS = [
    Case(130, 4, (28, 28), (23, 23), 16, 64, content=True),
    Case(64, 1, (14, 14), (27, 27), 16, 32),
    Case(9, 16, (9, 11), (5, 5), 8, 24, content=True),
    Case(2, 4, (40, 40), (23, 23), 16, 16),
    Case(33, 8, (14, 14), (7, 7), 16, 128, content=True),
]
# Whole layers: name, options, batch, side of the map with 64 channels
SMOKE: list[tuple[str, dict[str, Any], int, int]] = [
    ("1 head", {"heads": 1}, 32, 56),
    ("1056 x 1056, 2 examples", {}, 2, 1056),
    ("2 heads", {"heads": 2}, 32, 56),
    ("multi-head", {"heads": 4, "multi_head": True}, 32, 28),
    ("16 heads", {"heads": 16}, 32, 28),
    ("v = 24", {"dim_out": 96, "heads": 4}, 32, 28),
    ("k = 8", {"query_depth": 8}, 32, 28),
    ("intra-depth 4", {"intra_depth": 4}, 8, 14),
    ("one example", {}, 1, 56),
]
SMOKE_TOLERANCE = 0.05  # relative, for bfloat16 gradients through softmax and batch norm
if not ON_GPU:  # Triton's interpreter has no products in bfloat16
    SHAPES, MORE_SHAPES, DTYPES = [(5, 16, 3, 2)], [], [torch.float32]
    CHECKS = [Case(3, 4, (5, 7), (3, 5), 16, 16, content=True)]
    SMOKE = [("1 head", {"heads": 1}, 2, 5)]


def describe_machine() -> Row:
    row = {"commit": commit(), "torch": torch.__version__, "triton": installed_version("triton"), **hardware()}
    if ON_GPU:
        properties = torch.cuda.get_device_properties(0)
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
        row["capability"] = [properties.major, properties.minor]
        row["processors"], row["memory_bytes"] = properties.multi_processor_count, properties.total_memory
        row["driver"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return row


def time_eager(call: Callable[[], Any]) -> list[float]:
    """Median and quartiles of the microseconds of a call whose inputs are not in the L2 cache."""
    if not ON_GPU:
        start = time.perf_counter()
        call()
        return [1e6 * (time.perf_counter() - start)] * 3
    from triton.testing import do_bench

    return [1e3 * milliseconds for milliseconds in do_bench(call, rep=300, quantiles=[0.5, 0.25, 0.75])]


def time_calls(call: Callable[[], Any]) -> Row:
    """Microseconds of a call, median and quartiles: eager and, if it can be captured, as a CUDA graph."""
    median, *quartiles = time_eager(call)
    row: Row = {"eager_us": median, "eager_quartiles_us": quartiles}
    if ON_GPU and median < 1e5:  # it repeats the call 17 times at least
        from triton.testing import do_bench_cudagraph

        try:
            median, *quartiles = (1e3 * ms for ms in do_bench_cudagraph(call, quantiles=[0.5, 0.25, 0.75]))
            row |= {"graph_us": median, "graph_quartiles_us": quartiles}
        except RuntimeError as error:
            row["graph_error"] = repr(error)[:300]
    return row


def compile_all() -> Row:
    """Compile the kernels of all sizes for this device, on all cores, which fills Triton's cache."""
    import kernels

    tasks = kernels.configurations([int("".join(map(str, torch.cuda.get_device_capability())))])
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        results = zip(tasks, pool.imap(kernels.examine, tasks), strict=True)
        failures = [f"{task}: {'; '.join(reasons)}"[:400] for task, (reasons, _) in results if reasons]
    return {"compiled": len(tasks) - len(failures)} | ({"failure": failures[0]} if failures else {})


def self_test() -> Measurements:
    """The check that `auto` requires for each kernel."""
    for dtype in DTYPES:
        yield f"{dtype}", partial(run_self_test, dtype)


def run_self_test(dtype: torch.dtype) -> Row:
    failures = fused_check.failures(DEVICE, dtype)
    return {"correct": not failures, "failures": failures}


def check() -> Measurements:
    """All kernels against float64, at the full size of `layers` first, and whether 10 runs are bit-identical."""
    sides = [2 * side - 1 if scope is None else min(scope, 2 * side - 1) for side, _, scope, _ in SHAPES]
    layers = [
        Case(b, HEADS, (side, side), (scope, scope), QUERY_DEPTH, v, content=True)
        for scope, (side, v, _, b) in zip(sides, SHAPES, strict=True)
    ]
    cases = [(case, DTYPES[0]) for case in layers] + [(case, dtype) for case in CHECKS for dtype in DTYPES]
    for case, dtype in cases:
        example = functools.cache(partial(Example.of, case, dtype, DEVICE))
        for kernel in KERNELS:
            yield f"{kernel} {dtype} {case}", partial(check_kernel, kernel, example)


def check_kernel(kernel: str, example: Callable[[], Example]) -> Row:
    first = example().run(kernel)
    error, tolerance = max_relative_error(first, example().exact[kernel]), TOLERANCES[first.dtype]
    same = all(torch.equal(first, example().run(kernel)) for _ in range(9))
    return {"correct": error <= tolerance, "error": error, "bit_identical": same}


def smoke() -> Measurements:
    """Whole layers under autocast against float32: few heads, unusual depths, one example, large maps."""
    for name, options, batch, side in SMOKE:
        yield name, partial(check_layer, options, (batch, 64, side, side))


def check_layer(options: dict[str, Any], sizes: tuple[int, ...]) -> Row:
    """The maximum relative error of output and gradients under autocast, which may be twice that of query_order.

    The reference is query_order in float32.
    """
    torch.manual_seed(0)
    layer = LambdaLayer2d(64, scope=7, algorithm="fused", **options).to(DEVICE)
    x = torch.randn(sizes, device=DEVICE, requires_grad=True)
    weights = torch.randn_like(layer(x)) / (sizes[0] * sizes[2] * sizes[3]) ** 0.5
    results = []
    for algorithm, autocast in (("query_order", False), ("query_order", ON_GPU), ("fused", ON_GPU)):
        layer.algorithm = algorithm
        with torch.autocast(DEVICE_TYPE, torch.bfloat16, enabled=autocast):
            y = layer(x)
        gradients = torch.autograd.grad((y.float() * weights).sum(), [x, *layer.parameters()])
        results.append([y.detach(), *gradients])
    expected, *others = results
    usual, error = (max(map(relative_error, other, expected)) for other in others)
    return {"error": error, "error_of_query_order": usual, "correct": error < max(SMOKE_TOLERANCE, 2 * usual)}


def time_kernels() -> Measurements:
    """Each kernel: all shapes in bfloat16, the first two also in float32."""
    problems = [(shape, DTYPES[0]) for shape in (*SHAPES, *MORE_SHAPES)]
    problems += [(shape, dtype) for shape in SHAPES[:2] for dtype in DTYPES[1:]]
    for shape, dtype in problems:
        inputs = functools.cache(partial(make_inputs, shape, dtype))
        for kernel in KERNELS:
            name = f"{kernel} {shape[0]}x{shape[0]} v={shape[1]} r={shape[2]} b={shape[3]} {str(dtype)[6:]}"
            yield name, partial(time_kernel, kernel, inputs)


def make_inputs(shape: Shape, dtype: torch.dtype) -> tuple[Problem, list[Tensor], Tensor]:
    """The problem, then queries, table, values and content lambda in a layer's layout, and the output's gradient."""
    side, v, scope, batch = shape
    n, grid = side * side, (side, side)
    sides = (2 * side - 1,) * 2 if scope is None else (scope, scope)
    sizes: list[tuple[int, ...]]
    sizes = [(batch, n, HEADS, QUERY_DEPTH), (*sides, QUERY_DEPTH, 1), (batch, n, v, 1), (batch, QUERY_DEPTH, v)]
    queries, table, values, content = (torch.randn(size, device=DEVICE).to(dtype) for size in sizes)
    factors = [queries.transpose(1, 2), crop_to_grid(table, grid).contiguous(), values, content]
    grad_output = torch.randn(batch, n, HEADS, v, device=DEVICE).to(dtype).transpose(1, 2)
    return make_plan(factors, grid, False, "fused").problem, factors, grad_output


def time_kernel(kernel: str, inputs: Callable[[], tuple[Problem, list[Tensor], Tensor]]) -> Row:
    """Times of a launch and, on a GPU, of the kernel alone, without padding of the table."""
    problem, factors, grad_output = inputs()
    call = partial(Fused(problem).run, kernel, tuple(factors), grad_output)
    row: Row = {"eager_us": time_eager(call)[0]}
    if ON_GPU:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            time_eager(call)
        events = [event for event in profiler.key_averages() if event.key.startswith(KERNELS[kernel])]
        row["kernel_us"] = sum(e.self_device_time_total for e in events) / sum(e.count for e in events)
    return row


def layers() -> Measurements:
    """3x3 convolutions, lambda layers by algorithm, and layers of other packages."""

    def convolution(layer: LambdaLayer2d) -> nn.Module:
        return nn.Conv2d(layer.dim, layer.dim, 3, padding=1, bias=False)

    def with_algorithm(algorithm: str, layer: LambdaLayer2d) -> LambdaLayer2d:
        layer.algorithm = algorithm
        return layer

    builders: dict[str, Callable[[LambdaLayer2d], Any]] = {"3x3 convolution": convolution}
    algorithms = ("auto", "fused", "query_order")
    builders |= {f"lambda layer, {name}": partial(with_algorithm, name) for name in algorithms}
    builders |= {peer: partial(build_peer, peer) for peer in PEERS}
    shapes = [*SHAPES, *MORE_SHAPES[1:2]]
    cases = [(candidate, build, shape) for candidate, build in builders.items() for shape in shapes]
    if ON_GPU:
        cases.append(("lambda layer, auto, compiled", torch.compile, SHAPES[0]))
    for candidate, build, (side, v, scope, batch) in cases:

        def make(build: Any = build, dim: int = HEADS * v, scope: int | None = scope) -> nn.Module:
            torch.manual_seed(0)
            return build(LambdaLayer2d(dim, scope=scope, heads=HEADS).to(DEVICE))

        yield from time_module(f"{candidate} {side}x{side} v={v} b={batch}", make, (batch, HEADS * v, side, side))


def networks() -> Measurements:
    """ResNet-50, LambdaResNet-50, and ResNet-50 with lambda layers in some stages."""
    sizes = (128, 3, 224, 224) if ON_GPU else (2, 3, 64, 64)
    models: dict[str, Callable[[], nn.Module]] = {
        "lambda_resnet50": partial(create_model, "lambda_resnet50"),
        "resnet50": partial(timm.create_model, "resnet50"),
        "resnet50 CCLL": partial(create_model, "resnet50_lambda", pattern="CCLL"),
        "resnet50 LLLL": partial(create_model, "resnet50_lambda", pattern="LLLL"),
    }
    for name, make in models.items() if ON_GPU else [*models.items()][:1]:
        yield from time_module(f"{name} b={sizes[0]}", make, sizes)


def time_module(name: str, make: Callable[[], nn.Module], sizes: tuple[int, ...]) -> Measurements:
    """Inference and a training step in channels_last with bfloat16 autocast, and the step's peak memory."""
    module = functools.cache(make)
    yield f"{name}, inference", partial(time_pass, module, sizes, False)
    yield f"{name}, training step", partial(time_pass, module, sizes, True)


def time_pass(make: Callable[[], nn.Module], sizes: tuple[int, ...], training: bool) -> Row:
    module = make().to(DEVICE).train(training)
    if all(weight.ndim < 5 for weight in module.parameters()):  # 3D convolutions have no channels_last format
        module = module.to(memory_format=torch.channels_last)
    x = torch.randn(sizes, device=DEVICE).to(memory_format=torch.channels_last).requires_grad_(training)

    def forward() -> Tensor:
        with torch.autocast(DEVICE_TYPE, torch.bfloat16), torch.set_grad_enabled(training):
            return module(x)

    if not training:
        return time_calls(forward)
    grad_output, inputs = torch.randn_like(forward()), [x, *module.parameters()]
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    row = time_calls(lambda: torch.autograd.grad(forward(), inputs, grad_output))
    return row | ({"peak_mib": torch.cuda.max_memory_allocated() / 2**20} if ON_GPU else {})


# In order of what is lost if the time ends early, with their shares of it in minutes. A part may also use what those
# before it have left.
PARTS: dict[str, tuple[float, Callable[[], Measurements]]] = {
    "machine": (0.6, lambda: [("versions", describe_machine)]),  # with the first imports on a new machine
    "compile": (1.2, lambda: [("all", compile_all)] if ON_GPU else []),
    "self_test": (1.0, self_test),
    "check": (0.9, check),
    "layers": (1.6, layers),
    "networks": (0.8, networks),
    "kernels": (1.3, time_kernels),
    "smoke": (0.5, smoke),
}


def measure_part(name: str, out: Path, until: float) -> None:
    """Run a part in this process until a time in seconds since the epoch, and append its rows."""
    _, make_measurements = PARTS[name]
    for title, measure in make_measurements():
        row: Row = {"part": name, "name": title}
        if time.time() > until:
            row["failure"] = "not run: no time left"
        else:
            try:
                row |= measure()
            except Exception as error:
                row["failure"] = f"{type(error).__name__}: {error}"[:500]
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        if ON_GPU:
            torch.cuda.synchronize()  # a corrupted CUDA context ends the part


def run_part(name: str, out: Path, seconds: float) -> None:
    """Run a part in a new process within its time limit, and append a row with its time and failure."""
    start = time.time()
    command = [sys.executable, __file__, "--out", str(out.parent), "--parts", name, "--until", f"{start + seconds:.0f}"]
    environment = dict(os.environ) | ({} if ON_GPU else {"TRITON_INTERPRET": "1"})
    row: Row = {"part": name, "name": "whole part"}
    errors = out.with_name("errors.txt")
    with errors.open("ab") as file:
        file.write(f"\n== {name}\n".encode())
        file.flush()
        process = subprocess.Popen(command, env=environment, stderr=file, start_new_session=True)
        try:
            if code := process.wait(seconds + SECONDS_TO_STOP):
                lines = errors.read_text(errors="replace").strip().splitlines()
                row["failure"] = (lines or [f"ended with {code}"])[-1][:500]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its pool of compilers
            process.wait()
            row["failure"] = f"exceeded {seconds:.0f} s"
    with out.open("a") as file:
        file.write(json.dumps(row | {"seconds": round(time.time() - start, 1)}) + "\n")


def read_rows(path: Path) -> list[Row]:
    """Read the rows, and skip incomplete lines of killed parts."""
    rows = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def format_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if "eager_us" in row:
            measured = row.get("kernel_us", row.get("graph_us", row["eager_us"]))
            lines.append(f"{row['part']:<10}{row['name'][:63]:<64}{measured:>10.1f} us")
    checks = [row for row in rows if "correct" in row]
    failed = [row for row in checks if not (row["correct"] and row.get("bit_identical", True))]
    lines.append(f"{len(checks) - len(failed)} of {len(checks)} checks are correct and bit-identical")
    lines += [f"WRONG {row['part']} {row['name']}: {json.dumps(row)[:MAX_LENGTH]}" for row in failed]
    lines += [f"FAILED {row['part']} {row['name']}: {row['failure'][:MAX_LENGTH]}" for row in rows if "failure" in row]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--out", type=Path, help="folder of gpu.jsonl, to which rows are appended")
    group.add_argument("--table", type=Path, help="print the table of this gpu.jsonl")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS), help="parts to run")
    parser.add_argument("--minutes", type=float, help="time limit of all parts together")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # of the process of one part
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(format_table(read_rows(arguments.table)))
        return
    out = arguments.out / "gpu.jsonl"
    if arguments.until is not None:
        measure_part(*arguments.parts, out, arguments.until)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    end, minutes = time.monotonic(), sum(PARTS[name][0] for name in arguments.parts)
    for name in arguments.parts:
        end += 60 * PARTS[name][0] * (arguments.minutes or minutes) / minutes
        run_part(name, out, max(end - time.monotonic(), 5))
    print(format_table(read_rows(out)))


if __name__ == "__main__":
    main()
