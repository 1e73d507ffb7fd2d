"""Interrupts every command by SIGTERM and SIGINT at random times, and checks that no finished work is lost.

    PYTHONPATH=src python experiments/interruptions.py [--interruptions 20] [--commands NAME ...] [--out FILE]

Each command first runs uninterrupted. Then, for each signal and random time, it is interrupted in a new folder and
resumed. An interrupted command must end within 30 s with exit code 130, print no traceback, and leave no hidden file;
the resumed command must keep the finished work, and its files must equal those of the uninterrupted command except for
times. Commands are forked from one process that has imported everything. `lambdanets predict` in new processes tests
interruptions during the imports.
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
from kills import write_images

from lambdanets import cli
from lambdanets.__main__ import exit_quietly_on_signals
from lambdanets.provenance import commit, hardware, versions

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SMALL_RECIPE = "--channels 3 --image-size 8 --epochs 3 --batch-size 8 --learning-rate 0.03"
LAYER = "--shapes 4x5x8 6x5x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 0.05 --device cpu"
CountFinished = Callable[[Path], int]


@dataclass(frozen=True)
class Command:
    """A command of `lambdanets` that can be resumed."""

    arguments: str  # {} is the output path
    count_finished: CountFinished  # counts the finished work in the output path
    files_with_times: tuple[str, ...] = ()  # output files whose contents are not compared


def count_lines(name: str) -> CountFinished:
    """Count the lines, except the header, of the file `name` in the output folder or of the output path + `name`."""

    def count(out: Path) -> int:
        paths = [path for path in (out.with_name(out.name + name), out / name) if path.is_file()]
        return paths[0].read_bytes().count(b"\n") - 1 if paths else 0

    return count


def count_files(pattern: str) -> CountFinished:
    """Count the files in the output folder that match a pattern."""
    return lambda out: len(list(out.glob(pattern)))


def count_rows(out: Path) -> int:
    """Count the measured rows in the results of `benchmark`."""
    path = out / "results.json"
    if not path.is_file():
        return 0
    content = json.loads(path.read_bytes())
    incomplete = [row["sizes"] for row in content["rows"] if row["skip_reason"] and "not reached" in row["skip_reason"]]
    return sum(row["sizes"] not in incomplete for row in content["rows"])


def count_checkpoints(out: Path) -> int:
    """Count the runs that have a checkpoint."""
    return sum(1 for _ in out.rglob("last.ckpt"))


def commands(scratch: Path) -> dict[str, Command]:
    """The resumable commands by name, on small data."""
    images, run, detector, shards, labels = (
        scratch / name for name in ("images", "run", "detector", "shards", "labels")
    )
    run_times = ("result.json", "metrics.csv", "metrics.csv.lock")
    return {
        "predict": Command(f"predict {run} {images} {images}/*/*.png --out {{}}", count_lines(".partial")),
        "detect predict": Command(
            f"detect predict {detector} {images} --score 0 --out {{}}", count_lines("detections.partial")
        ),
        "train": Command(
            f"train --data {images} {SMALL_RECIPE} --checkpoint-every 1 --run {{}}", count_checkpoints, run_times
        ),
        "compare": Command(
            f"compare scope --data {images} {SMALL_RECIPE} --seeds 0 --variants 3x3 7x7 --out {{}}",
            count_checkpoints,
            (*run_times, "results.json", "plan.json"),
        ),
        "shard": Command(f"shard {images} {{}} --images-per-shard 3", count_files("*.tar")),
        "shard, one process": Command(f"shard {images} {{}} --images-per-shard 3 --processes 1", count_files("*.tar")),
        "pseudo-label": Command(f"pseudo-label {run} {shards} {{}}", count_files("*.parquet")),
        "pseudo-label select": Command(
            f"pseudo-label select {labels} {{}} --confidence 0 --per-class 9", count_files("*.parquet")
        ),
        "benchmark": Command(
            f"benchmark layer {LAYER} --candidates lambdanets convolution --out {{}}",
            count_rows,
            ("results.json", "layer.png"),
        ),
        "benchmark tables": Command(
            "benchmark tables --tables 10 12 --image-size 32 --batch-size 1 --repeats 1 --out {}",
            count_rows,
            ("results.json",),
        ),
    }


def prepare(scratch: Path) -> None:
    """Create the images, trained models, shards and labels that the commands read."""
    images = write_images(scratch / "images")
    for arguments in (
        f"train --data {images} {SMALL_RECIPE} --run {scratch / 'run'}",
        f"detect train digits --quicktest --run {scratch / 'detector'}",
        f"shard {images} {scratch / 'shards'} --images-per-shard 3",
        f"pseudo-label {scratch / 'run'} {scratch / 'shards'} {scratch / 'labels'}",
    ):
        exit_code, _, output = run_command(arguments.split(), scratch / "log")
        assert exit_code == 0, output


def run_command(
    arguments: list[str], log: Path, signal_number: int | None = None, delay: float = 0.0
) -> tuple[int, float, str]:
    """Run a command in a fork, and send a signal after `delay` seconds; returns exit code, seconds, and output."""
    start = time.perf_counter()
    log.touch()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has installed its handlers
    child = os.fork()
    if child == 0:
        _run_child(arguments, log)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if signal_number is not None:
        time.sleep(delay)
        os.kill(child, signal_number)
    deadline = time.monotonic() + 300
    ended = status = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"{' '.join(arguments)} did not end within 300 s:\n{log.read_text(errors='replace')}")
    return os.waitstatus_to_exitcode(status), time.perf_counter() - start, log.read_text(errors="replace")


def _run_child(arguments: list[str], log: Path) -> None:
    exit_code = 99
    try:
        file = log.open("w", buffering=1)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        exit_quietly_on_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        exit_code = cli.main(arguments)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(exit_code)


def read_outputs(out: Path, files_with_times: tuple[str, ...]) -> dict[str, bytes]:
    """The bytes of the output files by name; empty for figures, checkpoints and files with times."""
    paths = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    names = {path: path.relative_to(out).as_posix() if path != out else "" for path in paths}
    ignored = files_with_times
    return {
        name: b"" if path.suffix in (".png", ".ckpt") or path.name in ignored or name in ignored else path.read_bytes()
        for path, name in names.items()
        if not name.startswith("tensorboard/") and "/tensorboard/" not in name
    }


def hidden_files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def interrupt(
    name: str, command: Command, folder: Path, signal_number: int, delay: float, reference: Path
) -> dict[str, Any]:
    """Interrupt a command, resume it, and check its messages and files.

    reference: output path of the uninterrupted command.
    """
    folder.mkdir()
    out = folder / reference.name
    arguments = command.arguments.format(out).split()
    exit_code, seconds, output = run_command(arguments, folder.with_suffix(".log"), signal_number, delay)
    assert exit_code in (0, 130), f"{name} ended with {exit_code}:\n{output}"
    assert seconds - delay < 30, f"{name} took {seconds - delay:.0f} s to end"
    assert "Traceback" not in output, output
    assert "Exception ignored" not in output, output
    assert not hidden_files(folder), f"{name} left {hidden_files(folder)}:\n{output}"
    num_finished = command.count_finished(out)
    resume_arguments = arguments
    if name == "compare" and (out / "plan.json").is_file():
        resume_arguments = ["compare", "--resume", str(out)]
    if exit_code:
        resume_exit_code, _, resume_output = run_command(resume_arguments, folder.with_suffix(".log"))
        # if the outputs were complete before the signal, the second run is rejected
        pattern = r"exists(;| and is finished;) choose another"
        was_complete = resume_exit_code == 2 and re.search(pattern, resume_output) is not None
        assert resume_exit_code == 0 or was_complete, f"{name} did not resume:\n{output}\n{resume_output}"
        is_predict = name in ("predict", "detect predict")
        assert command.count_finished(out) >= num_finished or not num_finished or is_predict, resume_output
        if is_predict and num_finished and not was_complete:
            assert f"resuming: {num_finished} of " in resume_output, resume_output
    actual, expected = (read_outputs(path, command.files_with_times) for path in (out, reference))
    assert actual.keys() == expected.keys(), f"{name} left {actual.keys() ^ expected.keys()}"
    expected = {path: data.replace(bytes(reference.parent), bytes(out.parent)) for path, data in expected.items()}
    different = [path for path in actual if actual[path] != expected[path]]
    assert not different, f"{name} ended with different files: {different}"
    shutil.rmtree(folder)
    result = {"command": name, "signal": signal_number, "after": round(delay, 3)}
    return result | {"exit_code": exit_code, "finished": num_finished}


def interrupt_imports(scratch: Path, generator: random.Random, count: int) -> list[dict[str, Any]]:
    """Interrupt `count` new processes with each signal in their first 1.5 s, during the imports."""
    results = []
    for signal_number in SIGNALS:
        for _ in range(count):
            out, delay = scratch / "start.jsonl", generator.uniform(0.1, 1.5)
            command = [
                sys.executable,
                "-m",
                "lambdanets",
                *f"predict {scratch}/run {scratch}/images --out {out}".split(),
            ]
            with (scratch / "start.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
                time.sleep(delay)
                process.send_signal(signal_number)
                exit_code = process.wait(60)
            output = (scratch / "start.log").read_text()
            assert exit_code in (0, 130), f"a process interrupted after {delay:.2f} s ended with {exit_code}:\n{output}"
            assert "Traceback" not in output, output
            for leftover in scratch.glob("*start.jsonl*"):
                assert not leftover.name.startswith("."), leftover
                leftover.unlink()
            result = {"command": "start", "signal": signal_number, "after": round(delay, 3), "exit_code": exit_code}
            results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--interruptions", type=int, default=20, help="number per command and signal")
    parser.add_argument("--commands", nargs="*", help="names of commands; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the results; results of other commands in it are kept")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT for background processes
    torch.set_num_threads(1)  # forking a process with threads is not safe
    generator = random.Random(options.seed)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        prepare(scratch)
        if not options.commands or "start" in options.commands:
            results += interrupt_imports(scratch, generator, options.interruptions)
            print(
                f"start: {len(results)} processes interrupted in their first 1.5 s, none with a traceback", flush=True
            )
        for name, command in commands(scratch).items():
            if options.commands and name not in options.commands:
                continue
            (scratch / "reference").mkdir(exist_ok=True)
            reference = scratch / "reference" / name.replace(" ", "-")
            exit_code, seconds, output = run_command(command.arguments.format(reference).split(), scratch / "log")
            assert exit_code == 0, output
            for signal_number in SIGNALS:
                for number in range(options.interruptions):
                    folder = scratch / f"{reference.name}-{signal_number}-{number}"
                    delay = generator.uniform(0, seconds)
                    results.append(interrupt(name, command, folder, signal_number, delay, reference))
            exit_codes = Counter(entry["exit_code"] for entry in results if entry["command"] == name)
            with_work = sum(entry["finished"] > 0 for entry in results if entry["command"] == name)
            print(
                f"{name}: {exit_codes[130]} interrupted ({with_work} with work done), {exit_codes[0]} ended before",
                flush=True,
            )
            write_results(results, options.out)
    write_results(results, options.out)


def write_results(results: list[dict[str, Any]], out: Path | None) -> None:
    """Write the results as JSON, and keep those of other commands in the file."""
    if out is None:
        return
    existing = json.loads(out.read_bytes())["interruptions"] if out.is_file() else []
    names = {entry["command"] for entry in results}
    interruptions = [entry for entry in existing if entry["command"] not in names]
    interruptions += [entry | {"commit": commit()} for entry in results]
    content = {"interruptions": interruptions, "versions": versions(), "hardware": hardware()}
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
