"""Runs the command with invalid and unusual inputs, and checks that each is rejected in one sentence, or processed.

    PYTHONPATH=src python experiments/bad_inputs.py [--only GROUP ...] [--match REGEX] [--list] [--out FILE]

Each input runs in a fork of this process, which has imported everything, in a new folder; some run as `python -m
lambdanets`. A rejected input must end with exit code 2 and one sentence, and leave no file; an accepted one must end
with 0 and write valid files. None may print a traceback, warning or control character, run code of its input, change
files outside its folder, use more than 3 GiB or exceed the time limit.
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

os.environ["HF_HUB_OFFLINE"] = "1"  # no input may reach for the network

import torch
from bad_inputs import GROUPS, Input, Places, attempt

from lambdanets.provenance import commit, hardware, versions

# Modules that commands import lazily, imported once before forking.
IMPORTED = (
    "matplotlib.backends.backend_agg",
    "torch.utils.tensorboard",
    "lambdanets.evidence.benchmark.run",
    "lambdanets.evidence.studies.summary",
    "lambdanets.evidence.tables.verdicts",
    "lambdanets.training.classification.quicktest",
    "lambdanets.inference.detection_figures",
    "lambdanets.training.detection.task",
    "lambdanets.training.pseudo_labels.labeling",
    "lambdanets.training.pseudo_labels.selection",
    "lambdanets.training.run",
)


def try_inputs(inputs: list[tuple[str, Input]], scratch: Path, limit: float) -> list[dict[str, Any]]:
    """Run inputs one after another, and print those that broke a rule."""
    places = Places(scratch / "places")
    (scratch / "places").mkdir(parents=True)
    for name in ("LAMBDANETS_CACHE", "LAMBDANETS_SHARDS_CACHE"):  # outside scratch, where changes count as faults
        os.environ[name] = str(scratch.parent / name.lower())
    done = []
    try:
        for number, (group, entry) in enumerate(inputs):
            here = scratch / "inputs" / f"{number:04}" / "here"
            outcome = attempt(entry, here, places, scratch, limit)
            make_writable(here)
            shutil.rmtree(here.parent)
            done.append(
                {
                    "group": group,
                    "input": str(entry),
                    "exit_code": outcome.exit_code,
                    "seconds": round(outcome.seconds, 2),
                    "peak_mib": outcome.peak_bytes >> 20,
                    "said": outcome.last_line.replace(str(scratch), "SCRATCH"),
                    "faults": [fault.replace(str(scratch), "SCRATCH") for fault in outcome.faults],
                }
            )
            if outcome.faults:
                print(f"{group}: {entry}", *(f"    {fault}" for fault in done[-1]["faults"]), sep="\n")
                print(f"    last line: {done[-1]['said'][:400]}", flush=True)
    finally:
        places.close()
    return done


def try_in_processes(inputs: list[tuple[str, Input]], scratch: Path, limit: float, jobs: int) -> list[dict[str, Any]]:
    """Run inputs in several processes, each with its own places; returns the results in order."""
    children = {}
    for job in range(jobs):
        place = scratch / f"job{job}"
        place.mkdir()
        children[job] = os.fork()
        if children[job] == 0:
            code = 1
            try:
                (place / "done.json").write_text(json.dumps(try_inputs(inputs[job::jobs], place / "scratch", limit)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
    failed = [job for job, child in children.items() if os.waitpid(child, 0)[1]]
    if failed:
        raise RuntimeError("a worker process failed, see above")
    parts = [json.loads((scratch / f"job{job}" / "done.json").read_text()) for job in range(jobs)]
    return [parts[number % jobs][number // jobs] for number in range(len(inputs))]


def make_writable(folder: Path) -> None:
    """Restore permissions, so that the folder can be removed."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            if not (path := Path(place, name)).is_symlink():
                path.chmod(0o700)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(GROUPS), metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--match", default="", help="regular expression for commands or names of inputs")
    parser.add_argument("--list", action="store_true", help="only print the inputs")
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
    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)  # forking a process with threads is not safe
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        done = try_in_processes(inputs, Path(scratch).resolve(), options.limit, max(1, min(options.jobs, len(inputs))))
    failed = [entry for entry in done if entry["faults"]]
    ends = Counter(str(entry["exit_code"]) for entry in done)
    seconds = time.perf_counter() - start
    print(f"{len(done)} inputs in {seconds:.0f} s; exit codes {dict(ends)}; {len(failed)} broke a rule")
    if options.out:
        result = {
            "inputs": len(done),
            "forked": sum(not entry.alone for _, entry in inputs),
            "by_group": dict(Counter(entry["group"] for entry in done)),
            "exit_codes": dict(ends),
            "broke_a_rule": len(failed),
            "seconds": round(seconds),
            "commit": commit(),
            "versions": versions(),
            "hardware": hardware(),
            "each": done,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
