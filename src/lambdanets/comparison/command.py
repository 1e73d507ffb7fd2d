"""`lambdanets compare`: trains, and tells of each run as it ends."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from lambdanets.comparison.execution import Plan, begin, read_plan, read_results, train_all
from lambdanets.comparison.summary import RESULTS, TABLE, markdown, summarize, write_summary
from lambdanets.training.recipe import Recipe


@dataclass(frozen=True)
class Compare:
    """A recipe's fields, which variants and seeds to train by it, and where the results go."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    variants: tuple[str, ...] = ()
    """Variants of the studies, by name; all if none is given."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each variant is trained once with each: of weights, order, augmentation and the choice of images."""
    out: Path | None = None
    """Folder for the runs and results; must be new or empty. By default comparisons/STUDY-DATE-TIME."""


def start(plan: Plan, folder: Path) -> None:
    """Train a plan into a new folder."""
    begin(plan, folder)
    go_on(folder)


def go_on(folder: Path) -> None:
    """Train what a folder's plan still lacks, write the results after each run, and print them at the end."""
    plan = read_plan(folder)
    total, before = len(plan.runs()), len(read_results(plan, folder))
    print(f"{', '.join(plan.studies)}: {len(plan.seeds)} seeds, {total} runs, {before} of them done", flush=True)
    started = time.monotonic()

    def tell(result: dict[str, Any]) -> None:
        results = read_results(plan, folder)
        write_summary(plan, results, folder)
        done = len(results)
        left = (time.monotonic() - started) / max(1, done - before) * (total - done)
        print(
            f"[{done}/{total}] {result['variant']}, seed {result['seed']}: top-1 {result['top1']:.4f}, "
            f"{result['seconds']:.0f} s{f'; about {left / 60:.0f} min left' if done < total else ''}",
            flush=True,
        )

    train_all(plan, folder, tell)
    results = read_results(plan, folder)
    if before == total:
        print(f"\n{markdown(summarize(plan, results))}")
        return
    if len(results) < total:
        print(f"{total - len(results)} runs are under way in other processes, the last of which writes the results")
        return
    print(f"\n{markdown(write_summary(plan, results, folder))}")
    print(f"written to {folder}: {RESULTS}, {TABLE} and a picture a study")
