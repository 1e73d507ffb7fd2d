"""Tests and benchmarks the fused kernels and the PyTorch algorithms on a GPU, to correct predicted times."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from lambdanets.calibration.timing import median_seconds
from lambdanets.ops.position.execution import run_backward, run_forward
from lambdanets.ops.position.fused import verification
from lambdanets.ops.position.fused.device import KernelDevice, kernel_device
from lambdanets.ops.position.fused.self_test import Example, check_kernel
from lambdanets.ops.position.fused.self_test_process import SelfTestResult, dtype_name
from lambdanets.ops.position.plan import WORKSPACE_LIMIT_BYTES, predicted_costs
from lambdanets.ops.position.problem import Factors, NeedsGrad, Problem, make_problem
from lambdanets.ops.position.rates import Corrections, Rates

# The stages of a LambdaResNet-50 at 224 pixels: batch, heads, side of the feature map, scope, query depth, value depth.
SHAPES = ((32, 4, 56, 23, 16, 16), (32, 4, 28, 23, 16, 32), (32, 4, 14, 23, 16, 64), (32, 4, 7, 23, 16, 128))
# PyTorch algorithms are not timed if they are predicted to be slower than the fastest by more than this factor.
_MAX_SLOWDOWN = 30
_ALL_NEED_GRAD = NeedsGrad(True, True, True)
_DIRECTIONS = "forward", "backward"


@dataclass(frozen=True)
class Timing:
    """Measured and predicted seconds of one pass of an algorithm, before correction.

    direction: "forward" or "backward".
    """

    problem: Problem
    direction: str
    algorithm: str
    seconds: float
    predicted_seconds: float


def calibrate_kernels(device: str, rates: Rates, report: Callable[[str], None]) -> Corrections:
    """Test all fused kernels on a device, cache the results, and benchmark the algorithms that may be fastest.

    report: called with lines of text.

    Kernels that pass their self-test are also compared with a PyTorch algorithm at the benchmarked shapes. Returns the
    ratio of measured to predicted time of each algorithm.
    """
    gpu = kernel_device(device)
    if gpu is None:
        report("no fused kernels: they need Triton and a GPU of compute capability 8.0 or newer")
    else:
        report(f"{'kernel':<27}{'dtype':<10}{'test s':>8}{'error':>10}{'allowed':>10}  result")
        for dtype in verification.DTYPES:
            for name, result in verification.retest(gpu, dtype).items():
                _report_result(name, dtype, result, report)
    timings = []
    report(f"\n{'problem':<44}{'pass':<10}{'fused ms':>10}{'PyTorch ms':>12}  fastest PyTorch algorithm")
    for dtype in verification.DTYPES:
        for shape in SHAPES:
            example = _example(shape, dtype, device)
            is_usable = {
                direction: gpu is not None and _verify(gpu, direction, example, report) for direction in _DIRECTIONS
            }
            for direction in _DIRECTIONS:
                shape_timings = list(_measure_timings(example, direction, rates, is_usable[direction], device))
                _report_timings(shape_timings, report)
                timings += shape_timings
    return corrections_from(timings)


def corrections_from(timings: Sequence[Timing]) -> Corrections:
    """Return geometric means of measured / predicted time per algorithm, dtype and pass; 1 if not measured."""
    keys = dict.fromkeys((timing.algorithm, timing.problem.dtype) for timing in timings)

    def mean_ratio(algorithm: str, dtype: torch.dtype, direction: str) -> float:
        ratios = [
            timing.seconds / timing.predicted_seconds
            for timing in timings
            if (timing.algorithm, timing.problem.dtype, timing.direction) == (algorithm, dtype, direction)
        ]
        return statistics.geometric_mean(ratios) if ratios else 1.0

    return tuple(
        (name, dtype_name(dtype), mean_ratio(name, dtype, "forward"), mean_ratio(name, dtype, "backward"))
        for name, dtype in keys
    )


def _example(shape: tuple[int, int, int, int, int, int], dtype: torch.dtype, device: str) -> Example:
    """Return a problem with the strides of a layer's tensors, and the results of "query_order" in float32."""
    # b: batch, h: heads, k: query depth, v: value depth, n: positions; q, r, g: float32 queries, table, grad_output
    b, h, side, scope, k, v = shape
    n, table_sides = side * side, (min(scope, 2 * side - 1),) * 2
    generator = torch.Generator().manual_seed(0)
    shapes = (b, n, h, k), (*table_sides, k, 1), (b, n, v, 1), (b, n, h, v)
    queries, table, values, grad_output = (torch.randn(size, generator=generator).to(device, dtype) for size in shapes)
    inputs = queries.transpose(1, 2), table, values, grad_output.transpose(1, 2)
    q, r, value, g = (tensor.float() for tensor in inputs)
    problem = make_problem(q, r, value, (side, side), False)
    results = run_forward(q, r, value, None, problem, "query_order"), *_gradients(g, (q, r, value), problem)
    exact = tuple(result.cpu().double() for result in results if result is not None)
    pairs = min(n, math.prod(table_sides))
    terms = pairs * k, pairs * v, b * h * n * v, pairs * h * k
    return Example(inputs, make_problem(*inputs[:3], (side, side), False), exact, terms)


def _gradients(
    grad_output: torch.Tensor, factors: Sequence[torch.Tensor], problem: Problem, algorithm: str = "query_order"
) -> tuple[torch.Tensor | None, ...]:
    queries, table, values = factors
    return run_backward(grad_output, *Factors(queries, table, values, None), problem, algorithm, _ALL_NEED_GRAD)[:3]


def _verify(device: KernelDevice, direction: str, example: Example, report: Callable[[str], None]) -> bool:
    """Whether the kernels of a pass passed their self-test and are correct for this example. Stores wrong results."""
    dtype = example.problem.dtype
    results = verification.get_results(device, dtype)
    names = [name for name in results if name.startswith("forward") == (direction == "forward")]
    passed = not any(results[name].reason for name in names)
    for name in names if passed else ():
        try:
            outcome = check_kernel(name, [example])
        except torch.OutOfMemoryError:
            outcome = {"reason": "is out of memory", "error": None}
        if outcome["reason"]:
            passed = False
            reason = f"{outcome['reason']} at {_describe(example.problem)}"
            report(f"{name} {reason}")
            if outcome["error"] is not None:  # wrong results; an exception may be specific to this problem
                verification.store(device, dtype, {name: SelfTestResult(reason, outcome["error"], outcome["allowed"])})
    return passed


def _measure_timings(
    example: Example, direction: str, rates: Rates, with_kernels: bool, device: str
) -> Iterator[Timing]:
    queries, table, values, grad_output = example.inputs
    problem, index = example.problem, _DIRECTIONS.index(direction)
    predictions = {
        name: (cost.seconds, cost.backward_seconds)[index]
        for name, cost in predicted_costs(problem, rates).items()
        if cost is not None and cost.workspaces[index] <= WORKSPACE_LIMIT_BYTES and (with_kernels or name != "fused")
    }
    fastest = min(predicted for name, predicted in predictions.items() if name != "fused")
    for name, predicted in predictions.items():

        def run(name: str = name) -> None:
            if direction == "forward":
                run_forward(queries, table, values, None, problem, name)
            else:
                _gradients(grad_output, (queries, table, values), problem, name)

        if name == "fused" or predicted <= _MAX_SLOWDOWN * fastest:
            yield Timing(problem, direction, name, median_seconds(run, device), predicted)


def _describe(problem: Problem) -> str:
    grid = "x".join(str(side) for side in problem.grid)
    return f"{grid} b={problem.batch} h={problem.heads} v={problem.value_depth} {dtype_name(problem.dtype)}"


def _report_result(name: str, dtype: torch.dtype, result: SelfTestResult, report: Callable[[str], None]) -> None:
    numbers = [result.seconds, result.error, result.allowed]
    seconds, error, allowed = ("-" if number is None else f"{number:.2g}" for number in numbers)
    report(f"{name:<27}{dtype_name(dtype):<10}{seconds:>8}{error:>10}{allowed:>10}  {result.reason or 'passed'}")


def _report_timings(timings: Sequence[Timing], report: Callable[[str], None]) -> None:
    fused = next((f"{1e3 * timing.seconds:.3f}" for timing in timings if timing.algorithm == "fused"), "-")
    best = min((timing for timing in timings if timing.algorithm != "fused"), key=lambda timing: timing.seconds)
    row = f"{_describe(best.problem):<44}{best.direction:<10}{fused:>10}{1e3 * best.seconds:>12.3f}"
    report(f"{row}  {best.algorithm}")
