"""What gpu.py times: the inputs, each method of computing the interaction or of standing in for it, and the clock."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops import position_interaction
from lambdanets.ops.geometry import crop_to_grid
from lambdanets.ops.position import fused
from lambdanets.ops.position.exportable import EXPORTABLE, interact_exportable
from lambdanets.ops.position.plan import make_plan
from lambdanets.ops.position.problem import Problem, Wanted, problem_of

DEVICE = "cuda"
HEADS, DEPTH = 4, 16
ROTATED_BYTES = 160 << 20  # more than the second-level cache holds
MOST_OPERATIONS = 2e12  # of a composed form, beyond which it is not timed

Call = Callable[[], Any]


def make_inputs(
    batch: int, rows: int, columns: int, scope: int | None, v: int, dtype: torch.dtype, seed: int = 0
) -> tuple[list[Tensor], Problem]:
    """Queries, cropped table, values, gradient of the output; and the problem they pose."""
    torch.manual_seed(seed)
    n, grid = rows * columns, (rows, columns)
    sides = (2 * rows - 1, 2 * columns - 1) if scope is None else (scope, scope)
    shapes = (batch, HEADS, n, DEPTH), (*sides, DEPTH, 1), (batch, n, v, 1), (batch, HEADS, n, v)
    queries, table, values, gradient = (torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes)
    table = crop_to_grid(table, grid).contiguous()
    return [queries, table, values, gradient], problem_of(queries, table, values, grid, False)


def rotated(make: Callable[[int], tuple[list[Tensor], Problem]]) -> tuple[list[list[Tensor]], Problem]:
    """Enough sets of inputs that none is in the cache when its turn comes again."""
    inputs, problem = make(0)
    size = sum(x.numel() * x.itemsize for x in inputs)
    return [inputs, *(make(i)[0] for i in range(1, min(16, math.ceil(ROTATED_BYTES / size))))], problem


def time_of(calls: Sequence[Call], samples: int = 15) -> dict[str, Any]:
    """Microseconds a call, the calls taking turns: median and quartiles of samples, eager and from a CUDA graph."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    start = time.monotonic()
    calls[0]()
    torch.cuda.synchronize()
    once = max(time.monotonic() - start, 1e-5)
    turns = max(1, min(4, int(0.02 / (once * len(calls)))))
    samples = max(3, min(samples, int(0.4 / (once * turns * len(calls)))))
    result: dict[str, Any] = {}

    def measure(run: Callable[[], Any], name: str, count: int) -> None:
        times = []
        for _ in range(samples):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / count)
        times.sort()
        result[f"{name}_us"] = median(times)
        result[f"{name}_quartiles_us"] = [times[len(times) // 4], times[(3 * len(times)) // 4]]

    def run_all() -> None:
        for _ in range(turns):
            for call in calls:
                call()

    measure(run_all, "eager", turns * len(calls))
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run_all()
        measure(graph.replay, "graph", turns * len(calls))
    except RuntimeError as error:  # what cannot be captured has its eager time alone
        result["graph_error"] = repr(error)[:300]
    return result


def methods_of(
    sets: list[list[Tensor]], problem: Problem, training: bool, compiled: bool
) -> dict[str, Callable[[], list[Call]]]:
    """Fused and composed forms and the 3x3 convolution; compiled, the composed forms alone."""
    methods: dict[str, Callable[[], list[Call]]] = {}
    for name in EXPORTABLE if compiled else ("query_order", "mixed", "lambda_order", "convolution"):
        if composed_operations(name, problem) * (3 if training else 1) < MOST_OPERATIONS:
            method = f"{name} compiled" if compiled else name
            methods[method] = partial(composed_calls, name, sets, problem, training, compiled)
    if not compiled:
        for order in ("lambda", "query"):
            methods[f"fused {order} order"] = partial(fused_calls, order, sets, problem, training)
        methods["3x3 convolution"] = partial(convolution_calls, sets, problem, training)
    return methods


def composed_operations(name: str, problem: Problem) -> float:
    cost = make_plan(problem).costs[name]
    return math.inf if cost is None else cost.operations


def convolution_calls(sets: list[list[Tensor]], problem: Problem, training: bool) -> list[Call]:
    """cuDNN's 3x3 convolution of as many channels as the lambda layer puts out, channels last."""
    channels = HEADS * problem.value_depth

    def random(*shape: int) -> Tensor:
        x = torch.randn(shape, device=DEVICE, dtype=problem.dtype).to(memory_format=torch.channels_last)
        return x.requires_grad_(training)

    def call(x: Tensor, gradient: Tensor) -> None:
        output = F.conv2d(x, weight, padding=1)
        if training:
            torch.autograd.grad(output, (x, weight), gradient)

    weight = random(channels, channels, 3, 3)
    maps = [random(problem.batch, channels, *problem.grid) for _ in sets]
    return [partial(call, x, torch.randn_like(x)) for x in maps]


def fused_calls(order: str, sets: list[list[Tensor]], problem: Problem, training: bool) -> list[Call]:
    def call(q: Tensor, r: Tensor, v: Tensor, g: Tensor) -> None:
        fused.forward_in_order(order, q, r, v, problem)
        if training:
            fused.gradients(g, q, r, v, problem, Wanted(True, True, True))

    return [partial(call, *inputs) for inputs in sets]


def composed_calls(
    algorithm: str, sets: list[list[Tensor]], problem: Problem, training: bool, compiled: bool
) -> list[Call]:
    def forward(q: Tensor, r: Tensor, v: Tensor) -> Tensor:
        if compiled:  # position_interaction is one operator to torch.compile, which it does not look into
            return interact_exportable(q, r, v, None, problem, algorithm)
        return position_interaction(q, r, v, problem.grid, algorithm=algorithm)

    function = torch.compile(forward, dynamic=False) if compiled else forward
    if not training:
        return [partial(function, *inputs[:3]) for inputs in sets]

    def call(inputs: list[Tensor], gradient: Tensor) -> None:
        torch.autograd.grad(function(*inputs), inputs, gradient)

    return [partial(call, [x.detach().requires_grad_() for x in inputs[:3]], inputs[3]) for inputs in sets]
