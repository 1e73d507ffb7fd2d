"""How good the plan is: each algorithm's predicted and measured times over a range of shapes, and what the choice loses.

python benchmarks/plan.py [--out FILE] measures on CPU, float32, with all threads that torch has. An algorithm is
measured where its prediction is within 4 times the best one. Everything is checked against the lambda order or, where
that is too large, against the query order, before its time counts.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import lambdanets
from lambdanets.ops.position.execution import run_backward, run_forward
from lambdanets.ops.position.plan import ALGORITHMS, make_plan
from lambdanets.ops.position.problem import Wanted, problem_of
from lambdanets.ops.position.rates import rates_of

# grid, sides of the table, b, v
SHAPES = [
    *(((side, side), (scope, scope), 8, v) for scope in (23, 7) for side, v in ((56, 16), (28, 32), (28, 64), (14, 64), (14, 128), (7, 128))),
    *(((side, side), (scope, scope), 8, v) for scope in (3, 11, 15) for side, v in ((56, 16), (28, 32), (14, 64))),
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


def measure(function: Callable[[], object], seconds: float) -> float:
    """The median of repeated calls, in seconds, over about the time given."""
    function()
    times = []
    start = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < seconds and len(times) < 15):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--only", type=int, help="measure the shape with this number alone")
    options = parser.parse_args()
    rows, losses = [], []
    for number, (grid, sides, b, v) in enumerate(SHAPES):
        if options.only not in (None, number):
            continue
        n = math.prod(grid)
        torch.manual_seed(0)
        projected = torch.randn(b, n, 64 + v)
        queries, values = projected[..., :64].unflatten(2, (4, 16)).transpose(1, 2), projected[..., 64:].unsqueeze(-1)
        table = torch.randn(*(min(r, 2 * s - 1) for r, s in zip(sides, grid, strict=True)), 16, 1)
        gradient = torch.randn(b, n, 4, v).transpose(1, 2)
        problem = problem_of(queries, table, values, grid, False)
        plan = make_plan(problem)
        everything = Wanted(True, True, True)
        print(f"{number}: {'x'.join(map(str, grid))} scope {'x'.join(map(str, sides))} b {b} v {v}")
        found = {"forward": {}, "backward": {}}
        reference = None
        for name in ALGORITHMS:
            cost = plan.costs[name]
            if cost is None or cost.workspace_bytes > 2 << 30:
                continue
            best = plan.costs[plan.chosen].seconds, plan.costs[plan.backward].backward_seconds
            if cost.seconds < 4 * best[0]:
                run = lambda: run_forward(queries, table, values, problem, name, False)
                output = run()
                reference = output if reference is None else reference
                torch.testing.assert_close(output, reference, rtol=0, atol=1e-5 * reference.abs().max().item())
                found["forward"][name] = (cost.seconds, measure(run, 0.5))
            if cost.backward_seconds < 4 * best[1]:
                run = lambda: run_backward(gradient, queries, table, values, problem, name, everything)
                found["backward"][name] = (cost.backward_seconds, measure(run, 0.5))
        for way, choice in (("forward", plan.chosen), ("backward", plan.backward)):
            fastest = min(time for _, time in found[way].values())
            loss = found[way][choice][1] / fastest
            losses.append(loss)
            figures = ", ".join(f"{name}{'*' if name == choice else ''} {1e3 * t:.2f} (predicted {1e3 * p:.2f})" for name, (p, t) in found[way].items())
            print(f"   {way}: {figures}; chosen / best {loss:.2f}")
            rows.append({"grid": grid, "sides": sides, "batch": b, "value_depth": v, "way": way, "chosen": choice, "seconds": {name: {"predicted": p, "measured": t} for name, (p, t) in found[way].items()}})
    worst = sorted(losses)[-5:]
    print(f"chosen / best: geometric mean {statistics.geometric_mean(losses):.3f}, within 10% in {sum(x <= 1.1 for x in losses)} of {len(losses)}, worst {[round(x, 2) for x in worst]}")
    if options.out:
        versions = {"torch": torch.__version__, "lambdanets": lambdanets.__version__, "threads": torch.get_num_threads()}
        options.out.write_text(json.dumps({"versions": versions, "rates": vars(rates_of("cpu")), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
