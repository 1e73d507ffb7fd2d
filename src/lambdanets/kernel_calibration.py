"""Tests the fused kernels on a GPU, and times them beside the plain algorithms, so that predictions hold on it."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from lambdanets.calibration import seconds_of
from lambdanets.ops.position.execution import run_backward, run_forward
from lambdanets.ops.position.fused import verification
from lambdanets.ops.position.fused.device import KernelDevice, kernel_device
from lambdanets.ops.position.fused.self_test import Example, check_kernel
from lambdanets.ops.position.fused.self_test_process import Verdict, dtype_name
from lambdanets.ops.position.plan import WORKSPACE_LIMIT_BYTES, predicted_costs
from lambdanets.ops.position.problem import Factors, NeedsGrad, Problem, problem_of
from lambdanets.ops.position.rates import Corrections, Rates

# Batch, heads, side of the map, scope, query depth, value depth: the stages of a LambdaResNet-50 at 224 pixels.
SHAPES = ((32, 4, 56, 23, 16, 16), (32, 4, 28, 23, 16, 32), (32, 4, 14, 23, 16, 64), (32, 4, 7, 23, 16, 128))
# A plain algorithm that is predicted to take this many times as long as the fastest is not timed.
_HOPELESS = 30
_ALL = NeedsGrad(True, True, True)
_KERNELS = {"forward": verification.FORWARD, "backward": verification.BACKWARD}


@dataclass(frozen=True)
class Timing:
    """Seconds of the "forward" or "backward" pass of an algorithm, measured and as predicted without corrections."""

    problem: Problem
    way: str
    algorithm: str
    seconds: float
    predicted: float


def calibrate_kernels(device: str, rates: Rates, report: Callable[[str], None]) -> Corrections:
    """Test all fused kernels on a device, keep the verdicts, time all algorithms that may be fastest; report lines.

    Where a kernel passed its self-test, what it computes at the shapes timed is compared with a plain algorithm too.
    Returns how much longer than predicted with these rates each algorithm takes.
    """
    found = kernel_device(device)
    if found is None:
        report("no fused kernels: they need Triton and a GPU of compute capability 8.0 or newer")
    else:
        report(f"{'kernel':<22}{'dtype':<10}{'test s':>8}{'error':>10}{'allowed':>10}  verdict")
        for dtype in verification.DTYPES:
            for name, verdict in verification.retest(found, dtype).items():
                _report_verdict(name, dtype, verdict, report)
    timings = []
    report(f"\n{'problem':<44}{'pass':<10}{'fused ms':>10}{'plain ms':>10}  fastest plain algorithm")
    for dtype in verification.DTYPES:
        for shape in SHAPES:
            example = _example(shape, dtype, device)
            usable = {way: found is not None and _agree(found, way, example, report) for way in _KERNELS}
            for way in _KERNELS:
                of_one = list(_timings(example, way, rates, usable[way], device))
                _report_timings(of_one, report)
                timings += of_one
    return corrections_from(timings)


def corrections_from(timings: Sequence[Timing]) -> Corrections:
    """By algorithm and dtype, the geometric means of measured over predicted time of both passes; 1 if unmeasured."""
    keys = dict.fromkeys((timing.algorithm, timing.problem.dtype) for timing in timings)

    def mean(algorithm: str, dtype: torch.dtype, way: str) -> float:
        factors = [
            timing.seconds / timing.predicted
            for timing in timings
            if (timing.algorithm, timing.problem.dtype, timing.way) == (algorithm, dtype, way)
        ]
        return statistics.geometric_mean(factors) if factors else 1.0

    return tuple(
        (name, dtype_name(dtype), mean(name, dtype, "forward"), mean(name, dtype, "backward")) for name, dtype in keys
    )


def _example(shape: tuple[int, int, int, int, int, int], dtype: torch.dtype, device: str) -> Example:
    """A problem in a layer's strides, with the results of a plain algorithm in float32."""
    b, h, side, scope, k, v = shape
    n, sides = side * side, (min(scope, 2 * side - 1),) * 2
    generator = torch.Generator().manual_seed(0)
    sizes = (b, n, h, k), (*sides, k, 1), (b, n, v, 1), (b, n, h, v)
    queries, table, values, gradient = (torch.randn(size, generator=generator).to(device, dtype) for size in sizes)
    inputs = queries.transpose(1, 2), table, values, gradient.transpose(1, 2)
    q, r, value, g = (x.float() for x in inputs)
    problem = problem_of(q, r, value, (side, side), False)
    results = run_forward(q, r, value, None, problem, "query_order"), *_gradients(g, (q, r, value), problem)
    exact = tuple(x.cpu().double() for x in results if x is not None)
    pairs = min(n, math.prod(sides))
    terms = pairs * k, pairs * v, b * h * n * v, pairs * h * k
    return Example(inputs, problem_of(*inputs[:3], (side, side), False), exact, terms)


def _gradients(
    gradient: torch.Tensor, factors: Sequence[torch.Tensor], problem: Problem, algorithm: str = "query_order"
) -> tuple[torch.Tensor | None, ...]:
    queries, table, values = factors
    return run_backward(gradient, *Factors(queries, table, values, None), problem, algorithm, _ALL)[:3]


def _agree(found: KernelDevice, way: str, example: Example, report: Callable[[str], None]) -> bool:
    """Whether the kernels of a pass have passed their self-test and agree at this problem; keeps a verdict if not."""
    dtype = example.problem.dtype
    verdicts = verification.verdicts_of(found, dtype)
    names = [name for name in _KERNELS[way] if name in verdicts]
    agree = not any(verdicts[name].reason for name in names)
    for name in names if agree else ():
        try:
            result = check_kernel(name, [example])
        except torch.OutOfMemoryError:
            result = {"reason": "is out of memory", "error": None}
        if result["reason"]:
            agree = False
            reason = f"{result['reason']} at {_described(example.problem)}"
            report(f"{name} {reason}")
            if result["error"] is not None:  # wrong; where it raises, other problems may do
                verification.store(found, dtype, {name: Verdict(reason, result["error"], result["allowed"])})
    return agree


def _timings(example: Example, way: str, rates: Rates, with_kernels: bool, device: str) -> Iterator[Timing]:
    queries, table, values, gradient = example.inputs
    problem, place = example.problem, list(_KERNELS).index(way)
    seconds = {
        name: (cost.seconds, cost.backward_seconds)[place]
        for name, cost in predicted_costs(problem, rates).items()
        if cost is not None and cost.workspaces[place] <= WORKSPACE_LIMIT_BYTES and (with_kernels or name != "fused")
    }
    fastest = min(predicted for name, predicted in seconds.items() if name != "fused")
    for name, predicted in seconds.items():

        def run(name: str = name) -> None:
            if way == "forward":
                run_forward(queries, table, values, None, problem, name)
            else:
                _gradients(gradient, (queries, table, values), problem, name)

        if name == "fused" or predicted <= _HOPELESS * fastest:
            yield Timing(problem, way, name, seconds_of(run, device), predicted)


def _described(problem: Problem) -> str:
    grid = "x".join(str(side) for side in problem.grid)
    return f"{grid} b={problem.batch} h={problem.heads} v={problem.value_depth} {dtype_name(problem.dtype)}"


def _report_verdict(name: str, dtype: torch.dtype, verdict: Verdict, report: Callable[[str], None]) -> None:
    figures = [verdict.seconds, verdict.error, verdict.allowed]
    seconds, error, allowed = ("-" if figure is None else f"{figure:.2g}" for figure in figures)
    report(f"{name:<22}{dtype_name(dtype):<10}{seconds:>8}{error:>10}{allowed:>10}  {verdict.reason or 'passed'}")


def _report_timings(timings: Sequence[Timing], report: Callable[[str], None]) -> None:
    fused = next((f"{1e3 * timing.seconds:.3f}" for timing in timings if timing.algorithm == "fused"), "-")
    plain = min((timing for timing in timings if timing.algorithm != "fused"), key=lambda timing: timing.seconds)
    row = f"{_described(plain.problem):<44}{plain.way:<10}{fused:>10}{1e3 * plain.seconds:>10.3f}"
    report(f"{row}  {plain.algorithm}")
