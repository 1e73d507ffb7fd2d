"""Interrupts every command by SIGTERM and SIGINT at random times, and checks that no finished work is lost.

    PYTHONPATH=src python experiments/interruptions.py [--moments 20] [--commands NAME ...] [--seed 0] [--out FILE]

Each command first runs uninterrupted. Then, for each signal and time, it is interrupted in a new folder and repeated
until it finishes. An interrupted command must end within 30 s with exit code 130, without a traceback, and leave no
hidden file; the repeated command must keep finished work, and the final files must equal the uninterrupted ones except
for times. Commands are forked from one process that has imported everything; `lambdanets predict` in new processes
tests interruptions during the imports.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_agg  # noqa: F401 - imported lazily by commands; imported here once for all forks
import torch
import torch.utils.tensorboard
from kills import draw_images

from lambdanets import cli
from lambdanets.__main__ import exit_quietly_on_signals
from lambdanets.provenance import commit, hardware, versions

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SMALL = "--channels 3 --image-size 8 --epochs 3 --batch-size 8 --learning-rate 0.03"
LAYER = "--shapes 4x5x8 6x5x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 0.05 --device cpu"
Finished = Callable[[Path], int]


@dataclass(frozen=True)
class Command:
    """Arguments, with {} for the output path; a count of the finished work; output files that contain times."""

    arguments: str
    finished: Finished
    timed: tuple[str, ...] = ()


def lines(name: str) -> Finished:
    """Lines of a file next to or in the output path."""

    def count(place: Path) -> int:
        found = [path for path in (place.with_name(place.name + name), place / name) if path.is_file()]
        return found[0].read_bytes().count(b"\n") - 1 if found else 0

    return count


def files(pattern: str) -> Finished:
    """Files that match a pattern."""
    return lambda place: len(list(place.glob(pattern)))


def rows(place: Path) -> int:
    """Measured rows in the results of `benchmark` or `tables`."""
    path = place / "results.json" if place.is_dir() else place
    if not path.is_file():
        return 0
    content = json.loads(path.read_bytes())
    if "passes" in content:
        return len(content["passes"])
    broken = [row["sizes"] for row in content["rows"] if row["skip_reason"] and "not reached" in row["skip_reason"]]
    return sum(row["sizes"] not in broken for row in content["rows"])


def steps(place: Path) -> int:
    """The number of runs that have a checkpoint."""
    return sum(1 for _ in place.rglob("last.ckpt"))


def commands(scratch: Path) -> dict[str, Command]:
    """The resumable commands, on small data."""
    images, run, detector, shards, labels = (scratch / n for n in ("images", "run", "detector", "shards", "labels"))
    timed_run = ("speed.csv", "result.json", "metrics.csv.lock")
    return {
        "predict": Command(f"predict {run} {images} {images}/*/*.png --out {{}}", lines(".partial")),
        "detect predict": Command(
            f"detect predict {detector} {images} --score 0 --out {{}}", lines("detections.partial")
        ),
        "train": Command(f"train --data {images} {SMALL} --checkpoint-every 1 --run {{}}", steps, timed_run),
        "compare": Command(
            f"compare scope --data {images} {SMALL} --seeds 0 --variants 3x3 7x7 --out {{}}",
            steps,
            (*timed_run, "results.json", "plan.json"),
        ),
        "shard": Command(f"shard {images} {{}} --images-per-shard 3", files("*.tar")),
        "shard, one process": Command(f"shard {images} {{}} --images-per-shard 3 --processes 1", files("*.tar")),
        "pseudo-label": Command(f"pseudo-label {run} {shards} {{}}", files("*.parquet")),
        "pseudo-label select": Command(
            f"pseudo-label select {labels} {{}} --confidence 0 --per-class 9", files("*.parquet")
        ),
        "benchmark": Command(
            f"benchmark layer {LAYER} --candidates lambdanets convolution --out {{}}",
            rows,
            ("results.json", "layer.png"),
        ),
        "tables --measure": Command(
            "tables 10 12 --measure --image-size 32 --batch-size 1 --repeats 1 --out {}", rows, ("",)
        ),
    }


def prepare(scratch: Path) -> None:
    """Make the images, trained models, shards and labels that the commands read."""
    images = draw_images(scratch / "images")
    for arguments in (
        f"train --data {images} {SMALL} --run {scratch / 'run'}",
        f"detect train digits --quicktest --run {scratch / 'detector'}",
        f"shard {images} {scratch / 'shards'} --images-per-shard 3",
        f"pseudo-label {scratch / 'run'} {scratch / 'shards'} {scratch / 'labels'}",
    ):
        code, _, output = attempt(arguments.split(), scratch / "log")
        assert code == 0, output


def attempt(arguments: list[str], log: Path, number: int | None = None, after: float = 0.0) -> tuple[int, float, str]:
    """Run a command in a fork, interrupted `after` seconds; returns exit code, seconds, and output."""
    start = time.perf_counter()
    log.touch()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has installed its handlers
    child = os.fork()
    if child == 0:
        _run_child(arguments, log)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if number is not None:
        time.sleep(after)
        os.kill(child, number)
    deadline = time.monotonic() + 300
    ended = status = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"{' '.join(arguments)} did not end:\n{log.read_text(errors='replace')}")
    return os.waitstatus_to_exitcode(status), time.perf_counter() - start, log.read_text(errors="replace")


def _run_child(arguments: list[str], log: Path) -> None:
    code = 99
    try:
        file = log.open("w", buffering=1)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        exit_quietly_on_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = cli.main(arguments)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def contents(place: Path, timed: tuple[str, ...]) -> dict[str, bytes]:
    """The output files with their bytes; figures, checkpoints and files that contain times without content."""
    paths = [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else [place]
    names = {path: path.relative_to(place).as_posix() if path != place else "" for path in paths}
    return {
        name: b"" if path.suffix in (".png", ".ckpt") or path.name in timed or name in timed else path.read_bytes()
        for path, name in names.items()
        if not name.startswith("tensorboard/") and "/tensorboard/" not in name
    }


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def interrupt(name: str, command: Command, folder: Path, number: int, after: float, reference: Path) -> dict[str, Any]:
    """Interrupt a command, check its output, and resume it until its files equal the uninterrupted command's."""
    folder.mkdir()
    out = folder / reference.name
    arguments = command.arguments.format(out).split()
    code, seconds, output = attempt(arguments, folder.with_suffix(".log"), number, after)
    assert code in (0, 130), f"{name} ended with {code}:\n{output}"
    assert seconds - after < 30, f"{name} took {seconds - after:.0f} s to end"
    assert "Traceback" not in output, output
    assert "Exception ignored" not in output, output
    assert not hidden(folder), f"{name} left {hidden(folder)}:\n{output}"
    kept = command.finished(out)
    resume = arguments
    if name == "compare" and (out / "plan.json").is_file():
        resume = ["compare", "--resume", str(out)]
    if code:
        resume_code, _, resume_output = attempt(resume, folder.with_suffix(".log"))
        # rejected if it had finished when the signal came; its files are compared below
        pattern = r"exists(;| and is finished;) choose another"
        had_finished = resume_code == 2 and re.search(pattern, resume_output) is not None
        assert resume_code == 0 or had_finished, f"{name} did not resume:\n{output}\n{resume_output}"
        assert command.finished(out) >= kept or not kept or name in ("predict", "detect predict"), resume_output
        if name in ("predict", "detect predict") and kept and not had_finished:
            assert f"resuming: {kept} of " in resume_output, resume_output
    found, expected = contents(out, command.timed), contents(reference, command.timed)
    assert found.keys() == expected.keys(), f"{name} left {found.keys() ^ expected.keys()}"
    differ = [
        path for path in found if found[path] != expected[path].replace(bytes(reference.parent), bytes(out.parent))
    ]
    assert not differ, f"{name} ended with different {differ}"
    shutil.rmtree(folder)
    return {"command": name, "signal": number, "after": round(after, 3), "exit_code": code, "finished": kept}


def interrupt_start(scratch: Path, generator: random.Random, moments: int) -> list[dict[str, Any]]:
    """Interrupt new processes in their first 1.5 s, during the imports."""
    done = []
    for number in SIGNALS:
        for _ in range(moments):
            out, after = scratch / "start.jsonl", generator.uniform(0.1, 1.5)
            command = [
                sys.executable,
                "-m",
                "lambdanets",
                *f"predict {scratch}/run {scratch}/images --out {out}".split(),
            ]
            with (scratch / "start.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
                time.sleep(after)
                process.send_signal(number)
                code = process.wait(60)
            output = (scratch / "start.log").read_text()
            assert code in (0, 130), f"a start ended with {code} after {after:.2f} s:\n{output}"
            assert "Traceback" not in output, output
            for leftover in scratch.glob("*start.jsonl*"):
                assert not leftover.name.startswith("."), leftover
                leftover.unlink()
            done.append({"command": "start", "signal": number, "after": round(after, 3), "exit_code": code})
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moments", type=int, default=20, help="interruptions per command and signal")
    parser.add_argument("--commands", nargs="*", help="names of commands; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the results as JSON; results of other commands are kept")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT for background processes
    torch.set_num_threads(1)  # forking a process with threads is not safe
    generator = random.Random(options.seed)
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        prepare(scratch)
        if not options.commands or "start" in options.commands:
            done += interrupt_start(scratch, generator, options.moments)
            print(f"start: {len(done)} interrupted in their first 1.5 s, none with a traceback", flush=True)
        for name, command in commands(scratch).items():
            if options.commands and name not in options.commands:
                continue
            (scratch / "reference").mkdir(exist_ok=True)
            reference = scratch / "reference" / name.replace(" ", "-")
            code, seconds, output = attempt(command.arguments.format(reference).split(), scratch / "log")
            assert code == 0, output
            for number in SIGNALS:
                for moment in range(options.moments):
                    folder = scratch / f"{reference.name}-{number}-{moment}"
                    after = generator.uniform(0, seconds)
                    done.append(interrupt(name, command, folder, number, after, reference))
            ends = Counter(entry["exit_code"] for entry in done if entry["command"] == name)
            kept = sum(entry["finished"] > 0 for entry in done if entry["command"] == name)
            print(f"{name}: {ends[130]} interrupted ({kept} with finished work), {ends[0]} ended before", flush=True)
            write(done, options.out)
    write(done, options.out)


def write(done: list[dict[str, Any]], out: Path | None) -> None:
    """Write the result of each interruption; results of other commands in the file are kept."""
    if out is None:
        return
    kept = json.loads(out.read_bytes())["moments"] if out.is_file() else []
    names = {entry["command"] for entry in done}
    moments = [entry for entry in kept if entry["command"] not in names]
    moments += [entry | {"commit": commit()} for entry in done]
    result = {"moments": moments, "versions": versions(), "hardware": hardware()}
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
