"""Runs one part of gpu.py: gpu_parts.py PART --out FILE --until TIME [--dry-run]."""

import argparse
import contextlib
import copy
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_clock import measure_calls
from torch import Tensor, nn

from lambdanets import LambdaLayer2d
from lambdanets.ops import position_interaction
from lambdanets.ops.position import fused, fused_check
from lambdanets.ops.position.algorithm import Problem
from lambdanets.ops.position.autograd import make_problem
from lambdanets.ops.position.fused import KERNELS, Fused
from lambdanets.ops.position.fused_check import CASES, FULL_TILE_CASE, Case, Example, max_relative_error, run_kernel
from lambdanets.ops.position.fused_sizes import ProgramSizes, choose_program_sizes, max_value_channels
from lambdanets.ops.tables import crop_to_grid

# side of the map, value depth, scope (None: global), batch: layers of LambdaResNet-50 at 224 pixels, and others
SHAPES = [(56, 16, 23, 128), (28, 32, 23, 128), (14, 64, 23, 128), (7, 128, 23, 128)]
MORE_SHAPES = [
    (56, 32, 23, 128),
    (28, 64, 23, 128),
    (28, 64, None, 128),
    (64, 64, 23, 1),
    (64, 64, None, 16),
    (128, 64, None, 1),
]
DTYPES = (torch.bfloat16, torch.float32)
HEADS, QUERY_DEPTH = 4, 16
# name, options of the layer, batch, side of the map with 64 channels
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
CHECKS = [
    Case(130, 4, (28, 28), (23, 23), 16, 64, content=True),
    Case(64, 1, (14, 14), (27, 27), 16, 32),
    Case(9, 16, (9, 11), (5, 5), 8, 24, content=True),
    Case(2, 4, (40, 40), (23, 23), 16, 16),
    Case(33, 8, (14, 14), (7, 7), 16, 128, content=True),
]
# The problems of `layers`, at full size. Their tiles differ from those of `CASES`.
LAYER_CHECKS = [Case(b, 4, (side, side), (r or 1,) * 2, 16, v, content=True) for side, v, r, b in SHAPES]
# Other tiles for these kernels: shape, dtype, kernel, positions, examples, step, values, warps, stages
CANDIDATES: list[tuple[tuple[int, int, int | None, int], torch.dtype, str, ProgramSizes]] = [
    (SHAPES[i], dtype, kernel, ProgramSizes(*sizes))
    for i, dtype, kernel, sizes in (
        (0, torch.bfloat16, "grad_table", (8, 4, 256, 16, 8, 2)),
        (1, torch.bfloat16, "grad_table", (8, 4, 256, 16, 8, 3)),
        (2, torch.bfloat16, "forward", (4, 2, 32, 64, 4, 3)),
        (2, torch.bfloat16, "grad_table", (8, 4, 256, 16, 8, 3)),
        (2, torch.bfloat16, "grad_table", (8, 1, 256, 64, 8, 3)),
        (3, torch.bfloat16, "grad_table", (8, 2, 256, 32, 8, 3)),
        (3, torch.bfloat16, "grad_table", (8, 1, 128, 64, 8, 3)),
        (0, torch.float32, "forward", (8, 8, 32, 16, 8, 2)),
        (0, torch.float32, "grad_table", (8, 2, 256, 16, 8, 3)),
    )
]
_SMOKE_TOLERANCE = 0.05  # relative, for bfloat16 gradients through softmax and batch norm
L2_FACTOR = 3  # size of all sets of inputs relative to the L2 cache


class Part:
    """The settings of a part; its methods append rows to the output file."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.name, self.out, self.dry_run = arguments.part, arguments.out, arguments.dry_run
        self.deadline, self.commit = arguments.until, arguments.commit
        self.device = "cpu" if self.dry_run else "cuda:0"

    def out_of_time(self, name: str) -> bool:
        """Whether the deadline has passed; if so, record that this is not run."""
        out_of_time = time.time() > self.deadline
        if out_of_time:
            self.write_row(name, failure="not run: no time left")
        return out_of_time

    def write_row(self, name: str, **row: Any) -> None:
        line = json.dumps({"part": self.name, "name": name, **row})
        with self.out.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    @contextlib.contextmanager
    def record_errors(self, name: str) -> Iterator[None]:
        """Record an exception as a row, and continue; a corrupted CUDA context, which is permanent, ends the part."""
        try:
            yield
        except Exception as error:
            self.write_row(name, failure=f"{type(error).__name__}: {error}"[:500])
            if not self.dry_run:
                torch.cuda.synchronize()


def command_output(*command: str) -> str | None:
    """The output of a command, or None if the command is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def machine(part: Part) -> None:
    """Record versions and hardware, and measure peak rates."""
    import triton

    row: dict[str, Any] = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
    row["commit"] = part.commit or command_output("git", "rev-parse", "HEAD")
    if not part.dry_run:
        properties = torch.cuda.get_device_properties(0)
        row |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "device": properties.name,
            "capability": [properties.major, properties.minor],
            "processors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "driver": command_output("nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"),
        }
    part.write_row("versions", **row)
    side, size = (64, 1 << 16) if part.dry_run else (8192, 1 << 30)
    for dtype in (torch.bfloat16, torch.float32):
        square = torch.randn(side, side, device=part.device).to(dtype)
        seconds = measure_seconds(lambda x=square: x @ x)
        part.write_row(f"product of {side} x {side}, {dtype}", tflops=2 * side**3 / seconds / 1e12)
    source = torch.randint(256, (size,), device=part.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    part.write_row("copy", gbytes=2 * size / measure_seconds(lambda: target.copy_(source)) / 1e9)
    with part.record_errors("reads from the L2 cache"):
        part.write_row("reads from the L2 cache", gbytes=l2_bandwidth(part) / 1e9)


def l2_bandwidth(part: Part) -> float:
    """Bytes per second of a kernel that reads 16 MiB many times, bypassing the L1 cache."""
    from l2_kernel import BLOCK, read_repeatedly

    programs, repeats = (2, 2) if part.dry_run else ((16 << 20) // (4 * BLOCK), 64)
    x = torch.randn(programs * BLOCK, device=part.device)
    sums = torch.empty(programs, device=part.device)
    seconds = measure_seconds(lambda: read_repeatedly[(programs,)](x, sums, programs, repeats, BLOCK))
    expected = repeats * x.double().sum().item()
    assert abs(sums.double().sum().item() - expected) < 1e-2 * (repeats * x.numel()) ** 0.5 + 1e-3 * abs(expected)
    return repeats * x.nbytes / seconds


def measure_seconds(call: Callable[[], Any]) -> float:
    times = measure_calls([call])
    return times.get("graph_us", times["eager_us"]) / 1e6


def launched_configurations(architecture: int) -> list[Any]:
    """The configurations that the other parts launch, those of layers first, each with whether it has a content lambda.

    The part self_test alone would compile 40 of them one after the other.
    """
    from kernels import Configuration

    # heads, value depth, batch
    layers = [(HEADS, v, batch) for _, v, _, batch in SHAPES]
    more = [(HEADS, v, batch) for _, v, _, batch in MORE_SHAPES]
    checks = [(case.heads, case.v, case.batch) for case in (*CHECKS, *CASES, FULL_TILE_CASE)]
    smoke = [
        (
            1 if options.get("multi_head") else options.get("heads", 4),
            options.get("dim_out", 64) // options.get("heads", 4),
            batch,
        )
        for _, options, batch, _ in SMOKE
    ]
    both = {(dtype, sizes) for dtype in DTYPES for sizes in (*checks, *smoke)}
    sizes = [(torch.bfloat16, each) for each in (*layers, *more, *checks, *smoke)]
    sizes += [(dtype, each) for dtype in DTYPES[1:] for each in (*layers[:2], *checks, *smoke)]
    distinct: dict[Any, None] = {}
    capability = divmod(architecture, 10)

    def add(kernel: str, dtype: torch.dtype, heads: int, tiles: ProgramSizes, contents: tuple[bool, ...]) -> None:
        contents = contents if kernel.startswith(("forward", "grad_queries")) else (True,)
        configuration = Configuration(kernel, architecture, heads, str(dtype)[6:], tiles)
        distinct.update(dict.fromkeys((configuration, content) for content in contents))

    for dtype, each in sizes:
        heads, depth, batch = each
        depth = min(depth, max_value_channels(dtype.itemsize))
        for kernel in KERNELS:
            tiles = choose_program_sizes(kernel, capability, dtype.itemsize, batch, heads, depth)
            add(kernel, dtype, heads, tiles, (True, False) if (dtype, each) in both else (True,))
    for _, dtype, kernel, tiles in CANDIDATES:
        add(kernel, dtype, HEADS, tiles, (True,))
    return list(distinct)


def compile_one(task: tuple[Any, bool]) -> str:
    """Compile a configuration; returns why it failed. Without the checks of kernels.py, which take as long."""
    import kernels

    try:
        kernels.compile_kernel(*task)
    except Exception as error:
        return " ".join(f"{task}: {type(error).__name__}: {error}".split())[:400]
    return ""


def compile_kernels(part: Part) -> None:
    """Compile the kernels of the other parts for this device, which fills Triton's cache."""
    architecture = 90 if part.dry_run else int("".join(map(str, torch.cuda.get_device_capability())))
    tasks = launched_configurations(architecture)
    if part.dry_run:
        part.write_row("configurations", count=len(tasks))
        return
    start, compiled = time.time(), 0
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        for failure in pool.imap_unordered(compile_one, tasks):
            compiled += 1
            if failure:
                part.write_row("a configuration", failure=failure)
            if part.out_of_time("the other configurations"):
                pool.terminate()
                break
    part.write_row("all", compiled=compiled, of=len(tasks), seconds=time.time() - start)


def smoke(part: Part) -> None:
    """Compare whole layers under autocast with float32: few heads, unusual depths, one example, large maps."""
    for name, options, batch, side in SMOKE:
        # Triton's interpreter does not support bfloat16 products
        for dtype in (torch.float16 if part.dry_run else torch.bfloat16,):
            if part.out_of_time(f"{name}, {dtype}"):
                continue
            if part.dry_run:
                batch, side = 2, 5
            with part.record_errors(f"{name}, {dtype}"):
                error, usual = layer_error(part, options, (batch, 64, side, side), dtype)
                correct = error < max(_SMOKE_TOLERANCE, 2 * usual)
                part.write_row(f"{name}, {dtype}", error=error, error_of_query_order=usual, correct=correct)


def layer_error(part: Part, options: dict[str, Any], sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[float, float]:
    """Maximum relative error of output and gradients under autocast, and that of query_order, which it may have.

    The reference is query_order in float32.
    """
    torch.manual_seed(0)
    layer = LambdaLayer2d(64, scope=7, algorithm="fused", **options).to(part.device)
    x = torch.randn(sizes, device=part.device, requires_grad=True)
    # the gradients of a mean would underflow in float16 without loss scaling, and those of a sum overflow
    weights = torch.randn_like(layer(x)) / (sizes[0] * sizes[2] * sizes[3]) ** 0.5
    results = []
    for algorithm, autocast in (("fused", True), ("query_order", True), ("query_order", False)):
        layer.algorithm = algorithm
        with torch.autocast(part.device.split(":")[0], dtype, enabled=autocast):
            y = layer(x)
        gradients = torch.autograd.grad((y.float() * weights).sum(), [x, *layer.parameters()])
        results.append([y.detach().float(), *(gradient.float() for gradient in gradients)])
    return max_error(results[0], results[2]), max_error(results[1], results[2])


def max_error(results: list[Tensor], expected: list[Tensor]) -> float:
    """Maximum relative L2 error; NaN if one is NaN."""
    errors = [(x - y).norm() / y.norm().clamp_min(1e-20) for x, y in zip(results, expected, strict=True)]
    return torch.stack(errors).max().item()


def check(part: Part) -> None:
    """Compare all kernels with float64 references, and check that 10 runs are bit-identical."""
    cases = [(case, (torch.bfloat16,)) for case in LAYER_CHECKS] + [(case, DTYPES) for case in CHECKS]
    for case, dtypes in [(Case(3, 4, (5, 7), (3, 5), 16, 16, content=True), DTYPES)] if part.dry_run else cases:
        for dtype in dtypes:
            if (part.dry_run and dtype == torch.bfloat16) or part.out_of_time(f"reference of {case} {dtype}"):
                continue  # Triton's interpreter does not support bfloat16 products
            with part.record_errors(f"reference of {case} {dtype}"):
                reference = partial(position_interaction, algorithm="query_order")  # in float64 on the device
                example = fused_check.make_example(case, dtype, part.device, reference, part.device)
                for kernel in KERNELS:
                    name = f"{kernel} {dtype} {case}"
                    if part.out_of_time(name):
                        continue
                    with part.record_errors(name):
                        error, tolerance = max_relative_error(kernel, example)
                        same = is_bit_identical(kernel, example, 2 if part.dry_run else 10)
                        part.write_row(name, correct=error <= tolerance, error=error, bit_identical=same)


def is_bit_identical(kernel: str, example: Example, repeats: int) -> bool:
    """Whether repeated runs of a kernel have bit-identical results."""
    first = run_kernel(kernel, example)
    return all(torch.equal(first, run_kernel(kernel, example)) for _ in range(repeats - 1))


def make_inputs(
    part: Part, shape: tuple[int, int, int | None, int], dtype: torch.dtype
) -> tuple[list[list[Tensor]], Problem]:
    """Sets of queries, table, values, content lambda and gradient in a layer's layout, and the problem.

    The queries and values of all sets are larger than the L2 cache, so that no kernel finds its inputs in the cache.
    """
    side, v, scope, batch = (5, 16, 3, 2) if part.dry_run else shape
    n, grid = side * side, (side, side)
    sides = (2 * side - 1,) * 2 if scope is None else (scope, scope)
    sizes: tuple[tuple[int, ...], ...]
    sizes = (batch, n, HEADS, QUERY_DEPTH), (*sides, QUERY_DEPTH, 1), (batch, n, v, 1), (batch, n, HEADS, v)
    sizes += ((batch, QUERY_DEPTH, v),)

    def make_set() -> list[Tensor]:
        tensors = (torch.randn(size, device=part.device).to(dtype) for size in sizes)
        queries, table, values, grad_output, content = tensors
        table = crop_to_grid(table, grid).contiguous()
        return [queries.transpose(1, 2), table, values, content, grad_output.transpose(1, 2)]

    sets = [make_set()]
    read_bytes = sets[0][0].nbytes + sets[0][2].nbytes
    cache_bytes = 0 if part.dry_run else torch.cuda.get_device_properties(0).L2_cache_size
    sets += [make_set() for _ in range(math.ceil(L2_FACTOR * cache_bytes / read_bytes))]
    return sets, make_problem(*sets[0][:3], grid, False)


def time_kernels(part: Part) -> None:
    """Measure the time of each kernel: all shapes in bfloat16, the first two also in float32."""
    problems = [(shape, torch.bfloat16) for shape in (*SHAPES, *MORE_SHAPES)]
    problems += [(shape, torch.float32) for shape in SHAPES[:2]]
    for shape, dtype in problems[-1:] if part.dry_run else problems:
        inputs = []
        with part.record_errors(f"inputs of {shape} {dtype}"):
            inputs.append(make_inputs(part, shape, dtype))
        if not inputs:
            continue
        sets, problem = inputs[0]
        for kernel, call in kernel_calls(problem).items():
            name = f"{kernel} {shape[0]}x{shape[0]} v={shape[1]} r={shape[2]} b={shape[3]} {str(dtype)[6:]}"
            if part.out_of_time(name):
                continue
            with part.record_errors(name):
                calls = [partial(call, *tensors) for tensors in sets]
                times = measure_calls(calls)
                if not part.dry_run:  # of the kernel alone, without padding of the table
                    times |= profiled_time(KERNELS[kernel].function, calls)
                part.write_row(name, **times)


def time_tiles(part: Part) -> None:
    """Measure kernels with other tiles, after comparing their results with those of the chosen tiles."""
    choose = fused.choose_program_sizes
    inputs: dict[Any, tuple[list[list[Tensor]], Problem]] = {}
    for shape, dtype, kernel, tiles in CANDIDATES[:2] if part.dry_run else CANDIDATES:
        name = f"{kernel} {shape[0]}x{shape[0]} v={shape[1]} {dtype} {tuple(tiles)}"
        if part.out_of_time(name):
            continue
        if (shape, dtype) not in inputs:
            inputs = {(shape, dtype): make_inputs(part, shape, torch.float16 if part.dry_run else dtype)}
        sets, problem = inputs[shape, dtype]
        call = kernel_calls(problem)[kernel]

        def choose_candidate(
            other: str, *sizes: Any, kernel: str = kernel, tiles: ProgramSizes = tiles, **named: Any
        ) -> ProgramSizes:
            return tiles if other == kernel else choose(other, *sizes, **named)

        with part.record_errors(name):
            expected = call(*sets[0]).float()
            fused.choose_program_sizes = choose_candidate
            try:
                result = call(*sets[0]).float()
                error = ((result - expected).norm() / expected.norm()).item()
                calls = [partial(call, *tensors) for tensors in sets]
                times = measure_calls(calls, samples=9, graph=False)
                if not part.dry_run:
                    times |= profiled_time(KERNELS[kernel].function, calls)
                part.write_row(name, error=error, correct=error < 0.02, **times)
            finally:
                fused.choose_program_sizes = choose


def kernel_calls(problem: Problem) -> dict[str, Callable[..., Tensor]]:
    """Functions of queries, table, values, content and grad_output, each of which launches one kernel."""

    def call(
        kernel: str, queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, grad_output: Tensor
    ) -> Tensor:
        return Fused(problem).run(kernel, (queries, table, values, content), grad_output)

    return {kernel: partial(call, kernel) for kernel in KERNELS}


def profiled_time(kernel: str, calls: list[Callable[[], Any]]) -> dict[str, Any]:
    """Microseconds of one launch of the kernel itself, or why the profiler does not give them."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for call in calls:
                call()
            torch.cuda.synchronize()
        events = [event for event in profiler.key_averages() if event.key.startswith(kernel)]
        count = sum(event.count for event in events)
        return {"kernel_us": sum(event.self_device_time_total for event in events) / count}
    except (RuntimeError, ZeroDivisionError) as error:
        return {"profiler_error": repr(error)[:200]}


def self_test(part: Part) -> None:
    """Run the check that `auto` requires for each kernel, and store its results for the later parts."""
    for dtype in (torch.float16,) if part.dry_run else DTYPES:  # the interpreter has no products in bfloat16
        if not part.out_of_time(f"{dtype}"):
            for name, reason in fused_check.check(part.device, dtype).items():
                part.write_row(f"{name} {dtype}", correct=not reason, reason=reason)


def layers(part: Part) -> None:
    """Time inference and training steps of 3x3 convolutions, lambda layers, and layers of other packages."""
    from lambdanets_lab.benchmark.peers import PEERS, Skipped, build_peer

    def convolution(layer: LambdaLayer2d) -> nn.Module:
        return nn.Conv2d(layer.dim, layer.dim, 3, padding=1, bias=False)

    builders: dict[str, Callable[[LambdaLayer2d], nn.Module]] = {
        "3x3 convolution": convolution,
        "lambda layer, auto": lambda layer: layer,
    }
    for algorithm in ("fused", "query_order"):
        builders[f"lambda layer, {algorithm}"] = partial(with_algorithm, algorithm)
    builders |= {peer: partial(build_peer, peer) for peer in PEERS}
    shapes = SHAPES[:1] if part.dry_run else (*SHAPES, (28, 64, 23, 128))
    cases = [(candidate, build, shape) for candidate, build in builders.items() for shape in shapes]
    if not part.dry_run:
        cases.append(("lambda layer, auto, compiled", torch.compile, SHAPES[0]))
    for candidate, build, (side, v, scope, batch) in cases:
        name = f"{candidate} {side}x{side} v={v} b={batch}"
        if part.out_of_time(name):
            continue
        dim, sizes = HEADS * v, (2, HEADS * v, 5, 5) if part.dry_run else (batch, HEADS * v, side, side)
        with part.record_errors(name), contextlib.suppress(Skipped):
            torch.manual_seed(0)
            layer = LambdaLayer2d(dim, scope=3 if part.dry_run else scope, heads=HEADS).to(part.device)
            time_module(part, name, build(layer).to(part.device), sizes)


def with_algorithm(algorithm: str, layer: LambdaLayer2d) -> LambdaLayer2d:
    """A copy of the layer that uses this algorithm."""
    copied = copy.deepcopy(layer)
    copied.algorithm = algorithm
    return copied


def time_module(part: Part, name: str, module: nn.Module, sizes: tuple[int, ...]) -> None:
    """Measure inference and a training step in channels_last with bfloat16 autocast, and the step's peak memory.

    Both are measured eagerly and, if they can be captured, as a CUDA graph.
    """
    device_type = part.device.split(":")[0]
    if all(weight.ndim < 5 for weight in module.parameters()):  # 3D convolutions have no channels_last format
        module = module.to(memory_format=torch.channels_last)
    module = module.train()
    x = torch.randn(sizes, device=part.device).to(memory_format=torch.channels_last).requires_grad_()

    def forward() -> Tensor:
        with torch.autocast(device_type, torch.bfloat16):
            return module(x)

    def inference() -> None:
        with torch.no_grad():
            forward()

    grad_output = torch.randn_like(forward())
    inputs = [x, *module.parameters()]
    module.eval()
    part.write_row(f"{name}, inference", **measure_calls([inference]))
    module.train()
    if device_type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = measure_calls([lambda: torch.autograd.grad(forward(), inputs, grad_output)])
    peak = torch.cuda.max_memory_allocated() / 2**20 if device_type == "cuda" else None
    part.write_row(f"{name}, training step", **step, peak_mib=peak)


def networks(part: Part) -> None:
    """Time LambdaResNet-50, ResNet-50, and ResNet-50 with lambda layers in some stages."""
    from lambdanets import create_model

    batch, side = (2, 64) if part.dry_run else (128, 224)
    models: list[tuple[str, dict[str, Any]]] = [("lambda_resnet50", {}), ("resnet50", {})]
    models += [("resnet50_lambda", {"pattern": pattern}) for pattern in ("CCLL", "LLLL")]
    for model_name, options in models[:1] if part.dry_run else models:
        name = f"{model_name} {' '.join(options.values())} b={batch}"
        if part.out_of_time(name):
            continue
        with part.record_errors(name):
            model = timm_model(model_name) if model_name == "resnet50" else create_model(model_name, **options)
            time_module(part, name, model.to(part.device), (batch, 3, side, side))


def profile_operations(part: Part) -> None:
    """Record which operations take the time of a layer on the CPU, and which kernels that of a network on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    from lambdanets import create_model

    layer = LambdaLayer2d(256, scope=23, heads=HEADS).to(part.device, memory_format=torch.channels_last)
    network = create_model("resnet50_lambda", pattern="LLLL").to(part.device, memory_format=torch.channels_last)
    cases = [("layer 14x14 v=64", layer, (128, 256, 14, 14)), ("resnet50_lambda LLLL", network, (128, 3, 224, 224))]
    for name, module, sizes in cases[:1] if part.dry_run else cases:
        if part.out_of_time(name):
            continue
        with part.record_errors(name):
            x = torch.randn((2, 256, 5, 5) if part.dry_run else sizes, device=part.device, requires_grad=True)

            def step(module: nn.Module = module, x: Tensor = x) -> None:
                with torch.autocast(part.device.split(":")[0], torch.bfloat16):
                    y = module(x)
                torch.autograd.grad(y.float().square().sum(), [x, *module.parameters()])

            step(), step()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                step()
                if not part.dry_run:
                    torch.cuda.synchronize()
            events = profiler.key_averages()
            for kind in ("self_cpu_time_total", "self_device_time_total"):
                largest = sorted(events, key=lambda event: -getattr(event, kind))[:30]
                rows = [[event.key[:80], event.count, round(getattr(event, kind), 1)] for event in largest]
                total = sum(getattr(event, kind) for event in events)
                part.write_row(f"{name}, training step", kind=kind, total_us=total, operations=rows)


def timm_model(name: str) -> nn.Module:
    import timm

    return timm.create_model(name)


PARTS: dict[str, Callable[[Part], None]] = {
    "machine": machine,
    "compile": compile_kernels,
    "smoke": smoke,
    "check": check,
    "kernels": time_kernels,
    "self_test": self_test,
    "layers": layers,
    "networks": networks,
    "tiles": time_tiles,
    "profile": profile_operations,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until", type=float, required=True, help="time at which to stop, seconds since the epoch")
    parser.add_argument("--commit")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    PARTS[arguments.part](Part(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
