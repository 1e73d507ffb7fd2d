"""`lambdanets compare`: trains, and tells of each run as it ends."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lambdanets.comparison.execution import Plan, begin, read_plan, read_results, train_all
from lambdanets.comparison.summary import PICTURE, RESULTS, TABLE, markdown, write_summary


def start(plan: Plan, folder: Path) -> None:
    """Train a plan into a new folder."""
    begin(plan, folder)
    go_on(folder)


def go_on(folder: Path) -> None:
    """Train what a folder's plan still lacks, write the results after each run, and print them at the end."""
    plan = read_plan(folder)
    total = len(plan.variants) * len(plan.seeds)
    before = len(read_results(plan, folder))
    print(f"{plan.study}: {len(plan.variants)} variants, {len(plan.seeds)} seeds, {total} runs, {before} of them done")
    started = time.monotonic()

    def tell(results: Sequence[dict[str, Any]]) -> None:
        result, done = results[-1], len(results)
        write_summary(plan, results, folder)
        left = (time.monotonic() - started) / max(1, done - before) * (total - done)
        print(
            f"[{done}/{total}] {result['variant']}, seed {result['seed']}: top-1 {result['top1']:.4f}, "
            f"{result['seconds']:.0f} s{f'; about {left / 60:.0f} min left' if done < total else ''}",
            flush=True,
        )

    train_all(plan, folder, tell)
    summary = write_summary(plan, read_results(plan, folder), folder)
    print(f"\n{markdown(summary)}")
    for name in (RESULTS, TABLE, PICTURE):
        print(f"written to {folder / name}")
