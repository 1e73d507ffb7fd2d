"""Starts a training run two and four times at once, and checks that one process trains and the others are rejected.

    PYTHONPATH=src python experiments/concurrent_starts.py [--out FILE]

The starts are simultaneous or 1, 5 or 10 s apart. In two more cases the first process is stopped by SIGSTOP while the
others start: in the middle of writing a checkpoint, and between its two renames. One process must end with exit code 0,
the others with 2 and a one-line message that names the process with the lock. Weights, metrics.csv, best.ckpt and file
names must equal those of a single run, and metrics.csv must have each row once.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from kills import check_bit_identical, write_images

from lambdanets.provenance import commit, hardware, versions

PROCESS_COUNTS = (2, 4)
GAPS = (0.0, 1.0, 5.0, 10.0)  # seconds between starts
# Where the first process is stopped: a description, and the function in whose 12th call it stops itself.
STOPPED_IN = {"half a checkpoint": "fsync", "between two renames": "replace"}
RECIPE_OPTIONS = {
    "channels": 3, "image-size": 8, "epochs": 12, "batch-size": 8, "micro-batch": 4, "learning-rate": 0.03,
    "drop-path": 0.2, "ema-decay": 0.9, "checkpoint-every": 1,
}  # fmt: skip

NUM_MICRO_BATCHES = 96  # per run; two per step
# `lambdanets`, slowed down so that a run lasts longer than the starts. The first argument is the delay after each batch
# in seconds, the second one the function in which the process stops itself, or empty.
COMMAND = """
import os, signal, sys, time
from pathlib import Path
from lambdanets.__main__ import console
from lambdanets.training.run_log import RunLog

on_batch_end = RunLog.on_train_batch_end
def slow_on_batch_end(*args):
    time.sleep(delay)
    on_batch_end(*args)
RunLog.on_train_batch_end = slow_on_batch_end

delay, stop_in = float(sys.argv.pop(1)), sys.argv.pop(1)
if stop_in:
    owner = os if stop_in == "fsync" else Path
    original, calls = getattr(owner, stop_in), []
    def stop_at_call_12(subject, *args):
        calls.append(None)
        if len(calls) == 12:
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(subject, *args)
    setattr(owner, stop_in, stop_at_call_12)
console()
"""


@dataclass
class TrainingProcess:
    """A process that runs `lambdanets train`, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def stopped(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def start(images: Path, folder: Path, number: int, seconds: float, stop_in: str = "") -> TrainingProcess:
    """Start a run, slowed down to take at least `seconds`.

    number: index of the process, for the name of its log. stop_in: function in which it stops itself, or empty.
    """
    log = folder.with_name(f"{folder.name}-{number}.log")
    options = [argument for name, value in RECIPE_OPTIONS.items() for argument in (f"--{name}", str(value))]
    lambdanets = [sys.executable, "-c", COMMAND, str(seconds / NUM_MICRO_BATCHES), stop_in]
    command = [*lambdanets, "train", "--data", str(images), *options, "--run", str(folder)]
    with log.open("wb") as file:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return TrainingProcess(subprocess.Popen(command, stdout=file, stderr=file, env=environment), log)


def check_exit_codes(processes: list[TrainingProcess]) -> dict[str, Any]:
    """Wait for all processes; raise AssertionError unless one has trained and the others were rejected in one line."""
    codes = [entry.process.wait(300) for entry in processes]
    outputs = [entry.log.read_text(errors="replace") for entry in processes]
    assert sorted(codes) == [0] + [2] * (len(processes) - 1), f"exit codes {codes}:\n" + "\n".join(outputs)
    pid = processes[codes.index(0)].process.pid
    for code, output in zip(codes, outputs, strict=True):
        assert code == 0 or output.count("\n") == 1, output
        assert code == 0 or f"is in use by process {pid} on " in output, output
    return {"exit_codes": codes, "trained": codes.index(0)}


def check_result(reference: Path, folder: Path) -> None:
    """Raise AssertionError unless the run is bit-identical to a reference run, and metrics.csv has each row once."""
    check_bit_identical(reference, folder)
    with (folder / "metrics.csv").open() as file:
        steps = [(row["step"], row["split"]) for row in csv.DictReader(file)]
    assert len(steps) == len(set(steps)), steps


def start_apart(images: Path, folder: Path, count: int, gap: float) -> list[TrainingProcess]:
    """Start `count` processes, `gap` seconds apart."""
    processes = []
    for number in range(count):
        processes.append(start(images, folder, number, count * gap + 20))  # 20 s for the imports of the last process
        if number < count - 1:
            time.sleep(gap)
    return processes


def start_while_stopped(images: Path, folder: Path, count: int, stop_in: str) -> list[TrainingProcess]:
    """Start `count` processes; the first one is stopped until the others have ended."""
    first = start(images, folder, 0, 12, stop_in)
    while not first.stopped:
        assert first.process.poll() is None, first.log.read_text(errors="replace")
        time.sleep(0.05)
    others = [start(images, folder, number, 12) for number in range(1, count)]
    for entry in others:
        entry.process.wait(120)
    os.kill(first.process.pid, signal.SIGCONT)
    return [first, *others]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        images = write_images(scratch / "images")
        reference = scratch / "single"
        assert start(images, reference, 0, 0).process.wait(300) == 0, (scratch / "single-0.log").read_text()
        cases: list[tuple[int, str, float | str]] = [(count, "gap", gap) for count in PROCESS_COUNTS for gap in GAPS]
        cases += [(count, "stopped_at", name) for count in PROCESS_COUNTS for name in STOPPED_IN]
        for number, (count, kind, value) in enumerate(cases):
            folder = scratch / f"run{number}"
            if isinstance(value, str):
                processes = start_while_stopped(images, folder, count, STOPPED_IN[value])
            else:
                processes = start_apart(images, folder, count, value)
            outcome = {"starts": count, kind: value, **check_exit_codes(processes)}
            check_result(reference, folder)
            results.append(outcome)
            print(f"{count} starts, {kind} {value}: process {outcome['trained']} trained, the others were rejected")
    print(f"{len(results)} cases, each bit-identical to a single run")
    if options.out:
        content = {"cases": results, "commit": commit(), "versions": versions(), "hardware": hardware()}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
