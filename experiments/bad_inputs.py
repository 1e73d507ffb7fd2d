"""Runs `lambdanets` with invalid and unusual inputs, and checks that each is rejected in one line, or processed.

    PYTHONPATH=src python experiments/bad_inputs.py [--only GROUP ...] [--match REGEX] [--list] [--out FILE]

Each input runs in a new folder, in a fork of this process, which has imported everything; some run as `python -m
lambdanets`. A rejected input must end with exit code 2 and a one-line message, and leave no file; an accepted input
must end with exit code 0 and write valid files. A command may not print a traceback, a warning or a control character,
run code of its input, change files outside its folder, use more than 3 GiB or exceed the time limit.
"""

import argparse
import importlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # no input may use the network

import torch
from bad_inputs import GROUPS, Fixtures, Input, run_input

from lambdanets.provenance import commit, hardware, versions

# Modules that commands import lazily, imported once before forking.
LAZY_IMPORTS = (
    "matplotlib.backends.backend_agg",
    "torch.utils.tensorboard",
    "lambdanets.deployment.export",
    "lambdanets.evidence.benchmark.run",
    "lambdanets.evidence.studies.summary",
    "lambdanets.evidence.tables.verdicts",
    "lambdanets.training.classification.quicktest",
    "lambdanets.inference.adopted",
    "lambdanets.inference.detection_figures",
    "lambdanets.inference.hub",
    "lambdanets.training.detection.task",
    "lambdanets.training.pseudo_labeling",
    "lambdanets.data.pseudo_labels.selection",
    "lambdanets.training.run",
)


def run_inputs(inputs: list[tuple[str, Input]], scratch: Path, limit: float) -> list[dict[str, Any]]:
    """Run inputs one after another, print those that violated a rule, and return the results."""
    fixtures = Fixtures(scratch / "fixtures")
    (scratch / "fixtures").mkdir(parents=True)
    for name in ("LAMBDANETS_CACHE", "LAMBDANETS_SHARDS_CACHE"):  # outside scratch, where a change is a violation
        os.environ[name] = str(scratch.parent / name.lower())
    results = []
    try:
        for number, (group, entry) in enumerate(inputs):
            cwd = scratch / "inputs" / f"{number:04}" / "cwd"
            outcome = run_input(entry, cwd, fixtures, scratch, limit)
            make_writable(cwd)
            shutil.rmtree(cwd.parent)
            results.append(
                {
                    "group": group,
                    "input": str(entry),
                    "exit_code": outcome.exit_code,
                    "seconds": round(outcome.seconds, 2),
                    "peak_mib": outcome.peak_bytes >> 20,
                    "last_line": outcome.last_line.replace(str(scratch), "SCRATCH"),
                    "violations": [each.replace(str(scratch), "SCRATCH") for each in outcome.violations],
                }
            )
            if outcome.violations:
                print(f"{group}: {entry}", *(f"    {each}" for each in results[-1]["violations"]), sep="\n")
                print(f"    last line: {results[-1]['last_line'][:400]}", flush=True)
    finally:
        fixtures.close()
    return results


def run_in_processes(inputs: list[tuple[str, Input]], scratch: Path, limit: float, jobs: int) -> list[dict[str, Any]]:
    """Run inputs in several processes, each with its own fixtures; returns the results in order."""
    children = {}
    for job in range(jobs):
        job_folder = scratch / f"job{job}"
        job_folder.mkdir()
        children[job] = os.fork()
        if children[job] == 0:
            code = 1
            try:
                (job_folder / "results.json").write_text(
                    json.dumps(run_inputs(inputs[job::jobs], job_folder / "scratch", limit))
                )
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
    failed = [job for job, child in children.items() if os.waitpid(child, 0)[1]]
    if failed:
        raise RuntimeError("a worker process failed; its traceback is above")
    by_job = [json.loads((scratch / f"job{job}" / "results.json").read_text()) for job in range(jobs)]
    return [by_job[number % jobs][number // jobs] for number in range(len(inputs))]


def make_writable(folder: Path) -> None:
    """Restore permissions so that the folder can be removed."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            if not (path := Path(parent, name)).is_symlink():
                path.chmod(0o700)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="*", choices=list(GROUPS), metavar="GROUP", help=f"run only these groups: {', '.join(GROUPS)}"
    )
    parser.add_argument(
        "--match", default="", help="run only inputs whose command or name matches this regular expression"
    )
    parser.add_argument("--list", action="store_true", help="print the inputs without running them")
    parser.add_argument("--limit", type=float, default=30.0, help="time limit per input in seconds")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names need not be valid UTF-8
            stream.reconfigure(errors="backslashreplace")
    inputs = [(group, entry) for group in options.only or GROUPS for entry in GROUPS[group]]
    inputs = [(group, entry) for group, entry in inputs if re.search(options.match, str(entry))]
    if options.list:
        print(*(f"{group}: {entry!s}" for group, entry in inputs), f"{len(inputs)} inputs", sep="\n")
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT for background processes
    for name in LAZY_IMPORTS:
        importlib.import_module(name)
    torch.set_num_threads(1)  # forking a process with threads is not safe
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        results = run_in_processes(
            inputs, Path(scratch).resolve(), options.limit, max(1, min(options.jobs, len(inputs)))
        )
    failed = [entry for entry in results if entry["violations"]]
    exit_codes = Counter(str(entry["exit_code"]) for entry in results)
    seconds = time.perf_counter() - start
    print(f"{len(results)} inputs in {seconds:.0f} s; exit codes {dict(exit_codes)}; {len(failed)} violated a rule")
    if options.out:
        content = {
            "inputs": len(results),
            "forked": sum(not entry.new_process for _, entry in inputs),
            "by_group": dict(Counter(entry["group"] for entry in results)),
            "exit_codes": dict(exit_codes),
            "violated_a_rule": len(failed),
            "seconds": round(seconds),
            "commit": commit(),
            "versions": versions(),
            "hardware": hardware(),
            "results": results,
        }
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
