"""Compares predicted and measured times of the algorithms, and the chosen algorithm with the fastest.

python experiments/plan.py [--out FILE] measures float32 on a CPU with PyTorch's number of threads. Only algorithms
whose predicted time is less than 4 times that of the chosen one are measured; their results are compared first.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lambdanets
from lambdanets.ops.position.execution import run_backward, run_forward
from lambdanets.ops.position.plan import make_plan
from lambdanets.ops.position.problem import NeedsGrad, make_problem
from lambdanets.ops.position.rates import device_rates

MAX_RATIO = 4  # to the predicted time of the chosen algorithm
MAX_WORKSPACE = 2 << 30  # bytes

# side of the map and value depth of the layers of LambdaResNet-50
RESNET_LAYERS = ((56, 16), (28, 32), (28, 64), (14, 64), (14, 128), (7, 128))
# grid, scope (sides of the position table), batch size b, value depth v
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], int, int]] = [
    *(((side, side), (scope, scope), 8, v) for scope in (23, 7) for side, v in RESNET_LAYERS),
    *(((side, side), (scope, scope), 8, v) for scope in (3, 11, 15) for side, v in RESNET_LAYERS[::2]),
    ((56, 56), (23, 23), 1, 16),
    ((28, 28), (23, 23), 1, 32),
    ((14, 14), (23, 23), 1, 64),
    ((7, 7), (13, 13), 1, 128),
    ((56, 56), (23, 23), 32, 16),
    ((14, 14), (23, 23), 64, 64),
    ((28, 28), (55, 55), 8, 32),
    ((33, 40), (23, 23), 4, 16),
    ((20, 31), (23, 23), 4, 64),
    *(((side, side), (2 * side - 1,) * 2, 1, 16) for side in (14, 28, 64, 128)),
    ((128, 128), (23, 23), 1, 64),
    *(((n,), (2 * n - 1,), 1, 16) for n in (256, 1024, 4096)),
    ((4096,), (23,), 4, 64),
    ((512,), (127,), 8, 32),
    ((8, 14, 14), (5, 7, 7), 2, 32),
    ((16, 16, 16), (31, 31, 31), 1, 16),
]


def measure(function: Callable[[], object], seconds: float = 0.5) -> float:
    """The median seconds of a call, repeated for about `seconds`."""
    function()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < seconds and len(times) < 15):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def compare(grid: tuple[int, ...], scope: tuple[int, ...], b: int, v: int) -> list[dict[str, Any]]:
    """Predict and measure the seconds of each algorithm for one shape, forward and backward."""
    torch.manual_seed(0)
    n = math.prod(grid)
    rows = torch.randn(b, n, 64 + v)
    queries, values = rows[..., :64].unflatten(2, (4, 16)).transpose(1, 2), rows[..., 64:].unsqueeze(-1)
    table = torch.randn(*(min(r, 2 * s - 1) for r, s in zip(scope, grid, strict=True)), 16, 1)
    grad_output = torch.randn(b, n, 4, v).transpose(1, 2)
    all_grads = NeedsGrad(True, True, True)
    plan = make_plan(make_problem(queries, table, values, grid, False))

    def forward(name: str) -> Tensor:
        return run_forward(queries, table, values, None, plan.problem, name)

    def backward(name: str) -> tuple[Tensor | None, ...]:
        return run_backward(grad_output, queries, table, values, None, plan.problem, name, all_grads)[:3]

    costs = {
        name: cost for name, cost in plan.costs.items() if cost is not None and cost.workspace_bytes <= MAX_WORKSPACE
    }
    passes = {
        "forward": (forward, plan.chosen, {name: cost.seconds for name, cost in costs.items()}),
        "backward": (backward, plan.backward, {name: cost.backward_seconds for name, cost in costs.items()}),
    }
    results = []
    for name_of_pass, (run, chosen, predicted) in passes.items():
        expected = run(chosen)
        seconds = {}
        for name, prediction in predicted.items():
            if prediction < MAX_RATIO * predicted[chosen]:
                check(run(name), expected)
                seconds[name] = {"predicted": prediction, "measured": measure(lambda run=run, name=name: run(name))}
        shape = {"grid": grid, "sides": scope, "b": b, "v": v}
        results.append({**shape, "pass": name_of_pass, "chosen": chosen, "seconds": seconds})
    return results


def check(actual: Any, expected: Any) -> None:
    """Raise AssertionError if two tensors, or two tuples of tensors, differ by more than 2e-5 of the maximum."""
    if isinstance(actual, Tensor):
        actual, expected = (actual,), (expected,)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=2e-5 * right.abs().max().item())


def slowdown(row: dict[str, Any]) -> float:
    """The measured time of the chosen algorithm divided by that of the fastest."""
    times = {name: seconds["measured"] for name, seconds in row["seconds"].items()}
    return times[row["chosen"]] / min(times.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--only", type=int, nargs="+", help="indices of the shapes to measure")
    options = parser.parse_args()
    rows = []
    for number, shape in enumerate(SHAPES):
        if options.only and number not in options.only:
            continue
        for row in compare(*shape):
            rows.append(row)
            grid, scope = ("x".join(map(str, sides)) for sides in shape[:2])
            label = f"{grid} scope {scope} b {shape[2]} v {shape[3]}, {row['pass']}"
            print(f"{number}: {label}; chosen / best {slowdown(row):.2f}")
            for name, times in row["seconds"].items():
                mark = "*" if name == row["chosen"] else " "
                print(
                    f"  {mark} {name:<24}"
                    + "".join(f"{kind} {1e3 * seconds:9.2f} ms  " for kind, seconds in times.items())
                )
    slowdowns = sorted(slowdown(row) for row in rows)
    num_near_best = sum(x <= 1.1 for x in slowdowns)
    mean = statistics.geometric_mean(slowdowns)
    print(f"chosen / best: geometric mean {mean:.3f}; within 10% in {num_near_best} of {len(slowdowns)}")
    print("worst: " + ", ".join(f"{x:.2f}" for x in slowdowns[-5:]))
    if options.out:
        versions = {
            "torch": torch.__version__,
            "lambdanets": lambdanets.__version__,
            "threads": torch.get_num_threads(),
        }
        options.out.write_text(
            json.dumps({"versions": versions, "rates": vars(device_rates("cpu")), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
