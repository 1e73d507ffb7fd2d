"""Starts one training run two and four times, and checks that one trains, the others are refused, and nothing is lost.

    PYTHONPATH=src python experiments/concurrent_starts.py [--out FILE]

The starts come together and 1, 5 and 10 s apart; twice the first one is held by SIGSTOP, in the middle of writing a
checkpoint and between its two renames, while others start. One process must end with exit code 0, the others with 2
and a sentence that names its owner; weights, metrics.csv and best.ckpt must be those of an undisturbed run, speed.csv
must have each step once, and the folder the files of the undisturbed run.
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
from kills import check_same_end, draw_images

from lambdanets.provenance import commit, hardware, versions

STARTS = (2, 4)
GAPS = (0.0, 1.0, 5.0, 10.0)  # seconds between starts
HELD = {"half a checkpoint": "fsync", "between two renames": "replace"}
FIELDS = {
    "channels": 3, "image-size": 8, "epochs": 12, "batch-size": 8, "micro-batch": 4, "learning-rate": 0.03,
    "drop-path": 0.2, "ema-decay": 0.9, "checkpoint-every": 1,
}  # fmt: skip

BATCHES = 96  # of a run, with two for each step
# The command, slowed down so that a run outlasts the starts: its first argument is how long to wait after each batch,
# its second names the call at which it stops itself.
COMMAND = """
import os, signal, sys, time
from pathlib import Path
from lambdanets.__main__ import console
from lambdanets.training.speed import Speed

on_batch_end = Speed.on_train_batch_end
def slowly(*given):
    time.sleep(pause)
    on_batch_end(*given)
Speed.on_train_batch_end = slowly

pause, held = float(sys.argv.pop(1)), sys.argv.pop(1)
if held:
    owner = os if held == "fsync" else Path
    original, calls = getattr(owner, held), []
    def stopped(subject, *given):
        calls.append(None)
        if len(calls) == 12:
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(subject, *given)
    setattr(owner, held, stopped)
console()
"""


@dataclass
class Start:
    """One start of the command, and the file that has what it said."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def stopped(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def start(images: Path, folder: Path, number: int, seconds: float, held: str = "") -> Start:
    """Start training into the folder, for at least so many seconds."""
    log = folder.with_name(f"{folder.name}-{number}.log")
    fields = [text for name, value in FIELDS.items() for text in (f"--{name}", str(value))]
    slowed = [sys.executable, "-c", COMMAND, str(seconds / BATCHES), held]
    command = [*slowed, "train", "--data", str(images), *fields, "--run", str(folder)]
    with log.open("wb") as file:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return Start(subprocess.Popen(command, stdout=file, stderr=file, env=environment), log)


def check_ends(starts: list[Start]) -> dict[str, Any]:
    """Wait for all; raise AssertionError unless one has trained and the others were refused in one sentence."""
    codes = [entry.process.wait(300) for entry in starts]
    said = [entry.log.read_text(errors="replace") for entry in starts]
    assert sorted(codes) == [0] + [2] * (len(starts) - 1), f"exit codes {codes}:\n" + "\n".join(said)
    trained = starts[codes.index(0)].process.pid
    for code, text in zip(codes, said, strict=True):
        assert code == 0 or text.count("\n") == 1, text
        assert code == 0 or f"is in use by process {trained} on " in text, text
    return {"exit_codes": codes, "trained": codes.index(0)}


def check_result(undisturbed: Path, folder: Path) -> None:
    """Raise AssertionError unless the run ended as the undisturbed one, to the byte, and speed.csv has no repeat."""
    check_same_end(undisturbed, folder)
    with (folder / "speed.csv").open() as file:
        steps = [row["step"] for row in csv.DictReader(file)]
    assert len(steps) == len(set(steps)), steps


def start_apart(images: Path, folder: Path, count: int, gap: float) -> list[Start]:
    """Several starts, so many seconds apart."""
    starts = []
    for number in range(count):
        starts.append(start(images, folder, number, count * gap + 20))  # 20: for the imports of the last
        if number < count - 1:
            time.sleep(gap)
    return starts


def start_beside_held(images: Path, folder: Path, count: int, held: str) -> list[Start]:
    """Starts beside a first one that has stopped itself; it goes on once the others have ended."""
    first = start(images, folder, 0, 12, held)
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
    parser.add_argument("--out", type=Path, help="write what came of each case as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        images = draw_images(scratch / "images")
        undisturbed = scratch / "undisturbed"
        assert start(images, undisturbed, 0, 0).process.wait(300) == 0, (scratch / "undisturbed-0.log").read_text()
        cases: list[tuple[int, str, float | str]] = [(count, "gap", gap) for count in STARTS for gap in GAPS]
        cases += [(count, "held", name) for count in STARTS for name in HELD]
        for number, (count, kind, value) in enumerate(cases):
            folder = scratch / f"run{number}"
            if isinstance(value, str):
                starts = start_beside_held(images, folder, count, HELD[value])
            else:
                starts = start_apart(images, folder, count, value)
            outcome = {"starts": count, kind: value, **check_ends(starts)}
            check_result(undisturbed, folder)
            done.append(outcome)
            print(f"{count} starts, {kind} {value}: number {outcome['trained']} trained, the others were refused")
    print(f"{len(done)} cases, each of which ended as the undisturbed run")
    if options.out:
        result = {"cases": done, "commit": commit(), "versions": versions(), "hardware": hardware()}
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
