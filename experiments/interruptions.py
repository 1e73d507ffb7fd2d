"""Interrupts every command by SIGTERM and SIGINT at random moments, and checks that nothing finished is lost.

    PYTHONPATH=src python experiments/interruptions.py [--moments 20] [--commands NAME ...] [--seed 0] [--out FILE]

Each command runs undisturbed first. Then, for each signal and moment, it is interrupted in a place of its own and given
again until it ends. An interrupted command must end within 30 s with exit code 130, without a traceback, and leave no
hidden file; what the file that it fills had finished must still be there when the command is given again, and in the
end the files must be the undisturbed command's to the byte, but for times. Commands are forked from one process that
has imported everything; the first second of a process of its own, with its imports, is tried by `lambdanets predict`.
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

import matplotlib.backends.backend_agg  # noqa: F401 - what commands import late, imported once for all
import torch
import torch.utils.tensorboard
from kills import draw_images

from lambdanets import cli
from lambdanets.__main__ import end_quietly
from lambdanets.provenance import commit, hardware, versions

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SMALL = "--channels 3 --image-size 8 --epochs 3 --batch-size 8 --learning-rate 0.03"
LAYER = "--shapes 4x5x8 6x5x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 0.05 --device cpu"
Finished = Callable[[Path], int]


@dataclass(frozen=True)
class Command:
    """Arguments, in which {} is the place it writes to; how much is finished there; files that hold times."""

    arguments: str
    finished: Finished
    timed: tuple[str, ...] = ()


def lines(name: str) -> Finished:
    """Lines of a file beside or in the place; the whole file once it is there."""

    def count(place: Path) -> int:
        found = [path for path in (place.with_name(place.name + name), place / name) if path.is_file()]
        return found[0].read_bytes().count(b"\n") - 1 if found else 0

    return count


def files(pattern: str) -> Finished:
    """Finished files of a pattern."""
    return lambda place: len(list(place.glob(pattern)))


def rows(place: Path) -> int:
    """Measured rows of a benchmark's or the tables' file."""
    path = place / "results.json" if place.is_dir() else place
    if not path.is_file():
        return 0
    content = json.loads(path.read_bytes())
    if "passes" in content:
        return len(content["passes"])
    broken = [row["sizes"] for row in content["rows"] if row["left_out"] and "not reached" in row["left_out"]]
    return sum(row["sizes"] not in broken for row in content["rows"])


def steps(place: Path) -> int:
    """Whether a run, or each of a comparison, has a checkpoint to resume from."""
    return sum(1 for _ in place.rglob("last.ckpt"))


def commands(scratch: Path) -> dict[str, Command]:
    """The commands that keep what is finished, on small data below a folder."""
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
            f"benchmark layer {LAYER} --contestants lambdanets convolution --out {{}}",
            rows,
            ("results.json", "layer.png"),
        ),
        "tables --measure": Command(
            "tables 10 12 --measure --image-size 32 --batch-size 1 --repeats 1 --out {}", rows, ("",)
        ),
    }


def prepare(scratch: Path) -> None:
    """The data, the trained models, the shards and the labels that commands read."""
    images = draw_images(scratch / "images")
    for arguments in (
        f"train --data {images} {SMALL} --run {scratch / 'run'}",
        f"detect train digits --quicktest --run {scratch / 'detector'}",
        f"shard {images} {scratch / 'shards'} --images-per-shard 3",
        f"pseudo-label {scratch / 'run'} {scratch / 'shards'} {scratch / 'labels'}",
    ):
        code, _, said = attempt(arguments.split(), scratch / "log")
        assert code == 0, said


def attempt(arguments: list[str], log: Path, number: int | None = None, after: float = 0.0) -> tuple[int, float, str]:
    """Run a command in a fork, interrupted after so many seconds; its exit code, seconds, and what it said."""
    began = time.perf_counter()
    log.touch()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has the handlers with which a command starts
    child = os.fork()
    if child == 0:
        _be_child(arguments, log)
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
    return os.waitstatus_to_exitcode(status), time.perf_counter() - began, log.read_text(errors="replace")


def _be_child(arguments: list[str], log: Path) -> None:
    code = 99
    try:
        file = log.open("w", buffering=1)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        end_quietly()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = cli.main(arguments)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def contents(place: Path, timed: tuple[str, ...]) -> dict[str, bytes]:
    """The files at a place with their bytes, without those that hold times; pictures by name alone."""
    paths = [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else [place]
    names = {path: path.relative_to(place).as_posix() if path != place else "" for path in paths}
    return {
        name: b"" if path.suffix in (".png", ".ckpt") or path.name in timed or name in timed else path.read_bytes()
        for path, name in names.items()
        if not name.startswith("tensorboard/") and "/tensorboard/" not in name
    }


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def interrupt(name: str, command: Command, folder: Path, number: int, after: float, whole: Path) -> dict[str, Any]:
    """Interrupt a command, see what it leaves, and give it again until it ends as the undisturbed one."""
    folder.mkdir()
    place = folder / whole.name
    arguments = command.arguments.format(place).split()
    code, seconds, said = attempt(arguments, folder.with_suffix(".log"), number, after)
    assert code in (0, 130), f"{name} ended with {code}:\n{said}"
    assert seconds - after < 30, f"{name} took {seconds - after:.0f} s to end"
    assert "Traceback" not in said, said
    assert "Exception ignored" not in said, said
    assert not hidden(folder), f"{name} left {hidden(folder)}:\n{said}"
    kept = command.finished(place)
    resumed = arguments
    if name == "compare" and (place / "plan.json").is_file():
        resumed = ["compare", "--resume", str(place)]
    if code:
        again, _, more = attempt(resumed, folder.with_suffix(".log"))
        # refused where it had finished as the signal came: its files are compared below
        had_finished = again == 2 and re.search(r"exists(;| and is finished;) choose another", more) is not None
        assert again == 0 or had_finished, f"{name} did not resume:\n{said}\n{more}"
        assert command.finished(place) >= kept or not kept or name in ("predict", "detect predict"), more
        if name in ("predict", "detect predict") and kept and not had_finished:
            assert f"resuming: {kept} of " in more, more
    ends, expected = contents(place, command.timed), contents(whole, command.timed)
    assert ends.keys() == expected.keys(), f"{name} left {ends.keys() ^ expected.keys()}"
    differ = [path for path in ends if ends[path] != expected[path].replace(bytes(whole.parent), bytes(place.parent))]
    assert not differ, f"{name} ended with other {differ}"
    shutil.rmtree(folder)
    return {"command": name, "signal": number, "after": round(after, 3), "exit_code": code, "finished": kept}


def interrupt_start(scratch: Path, generator: random.Random, moments: int) -> list[dict[str, Any]]:
    """Interrupt processes of their own in their first second and a half, while they import."""
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
            said = (scratch / "start.log").read_text()
            assert code in (0, 130), f"a start ended with {code} after {after:.2f} s:\n{said}"
            assert "Traceback" not in said, said
            for leftover in scratch.glob("*start.jsonl*"):
                assert not leftover.name.startswith("."), leftover
                leftover.unlink()
            done.append({"command": "start", "signal": number, "after": round(after, 3), "exit_code": code})
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moments", type=int, default=20, help="of each command and signal")
    parser.add_argument("--commands", nargs="*", help="by name; all if none is given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write what came of each as JSON, beside that of other commands")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    torch.set_num_threads(1)  # a process that has begun threads is not safe to fork
    generator = random.Random(options.seed)
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        prepare(scratch)
        if not options.commands or "start" in options.commands:
            done += interrupt_start(scratch, generator, options.moments)
            print(f"start: {len(done)} interrupted in their first 1.5 s, all quietly", flush=True)
        for name, command in commands(scratch).items():
            if options.commands and name not in options.commands:
                continue
            (scratch / "whole").mkdir(exist_ok=True)
            whole = scratch / "whole" / name.replace(" ", "-")
            code, seconds, said = attempt(command.arguments.format(whole).split(), scratch / "log")
            assert code == 0, said
            for number in SIGNALS:
                for moment in range(options.moments):
                    folder = scratch / f"{whole.name}-{number}-{moment}"
                    after = generator.uniform(0, seconds)
                    done.append(interrupt(name, command, folder, number, after, whole))
            ends = Counter(entry["exit_code"] for entry in done if entry["command"] == name)
            kept = sum(entry["finished"] > 0 for entry in done if entry["command"] == name)
            print(f"{name}: {ends[130]} interrupted ({kept} with finished work), {ends[0]} ended before", flush=True)
            write(done, options.out)
    write(done, options.out)


def write(done: list[dict[str, Any]], out: Path | None) -> None:
    """Write what came of each interruption; commands that did not run here keep what the file has of them."""
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
