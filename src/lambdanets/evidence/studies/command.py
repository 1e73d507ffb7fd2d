"""`lambdanets compare`: trains, and tells of each run as it ends."""

import time
from pathlib import Path
from typing import Any

from lambdanets.evidence.studies.execution import Plan, begin, read_plan, read_results, train_all
from lambdanets.evidence.studies.summary import RESULTS, TABLE, markdown, summarize, write_summary
from lambdanets.terminal import say


def start(plan: Plan, folder: Path) -> None:
    """Train a plan into a new folder."""
    begin(plan, folder)
    go_on(folder)


def go_on(folder: Path) -> None:
    """Train what a folder's plan still lacks, write the results after each run, and print them at the end."""
    plan = read_plan(folder)
    total, before = len(plan.runs()), len(read_results(plan, folder))
    say(f"{', '.join(plan.studies)}: {len(plan.seeds)} seeds, {total} runs, {before} of them done")
    started = time.monotonic()

    def tell(result: dict[str, Any]) -> None:
        results = read_results(plan, folder)
        write_summary(plan, results, folder)
        done = len(results)
        left = (time.monotonic() - started) / max(1, done - before) * (total - done)
        say(
            f"[{done}/{total}] {result['variant']}, seed {result['seed']}: top-1 {result['top1']:.4f}, "
            f"{result['seconds']:.0f} s{f'; about {left / 60:.0f} min left' if done < total else ''}"
        )

    train_all(plan, folder, tell)
    results = read_results(plan, folder)
    if before == total:
        say("", *markdown(summarize(plan, results)).split("\n"))
        return
    if len(results) < total:
        say(f"{total - len(results)} runs are under way in other processes, the last of which writes the results")
        return
    say("", *markdown(write_summary(plan, results, folder)).split("\n"))
    say(f"written to {folder}: {RESULTS}, {TABLE} and a picture a study")
