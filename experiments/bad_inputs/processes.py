"""Signals, SIGKILL, full disks, and /dev/full; some inputs run in new processes."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .files import image
from .images import check_predictions
from .inputs import Input, Setup, accepted, rejected
from .options import TRAIN
from .runs import RESUME, check_result, unfinished

TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
TRAIN_LONGER = TRAIN.replace("--epochs 1", "--epochs 10 --checkpoint-every 1")
LAYER = (
    "benchmark layer --shapes 4x4x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 3 --candidates lambdanets --out new"
)


def many_images(count: int) -> Setup:
    """The folder `many` with hard links to one image."""

    def setup(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        (cwd / "many").mkdir()
        for number in range(count):
            os.link(fixtures["photo"], cwd / f"many/{number:05}.png")

    return setup


def signal_after(seconds: float, signal_number: int) -> Callable[[int, Path], None]:
    """Returns a function that sends a signal after this many seconds."""

    def send(process: int, cwd: Path) -> None:
        time.sleep(seconds)
        os.kill(process, signal_number)

    return send


def signal_once_exists(path: str, signal_number: int) -> Callable[[int, Path], None]:
    """Returns a function that sends a signal once a path exists, or after 20 s."""

    def send(process: int, cwd: Path) -> None:
        deadline = time.monotonic() + 20
        while not (cwd / path).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(process, signal_number)

    return send


def interrupted(
    command: str, signal_number: int, while_running: Callable[[int, Path], None], *setup: Setup, **fields: Any
) -> Input:
    """A command that receives a signal: it must end with exit code 130, or -9 for SIGKILL."""
    code = -signal_number if signal_number == KILL else 130
    name = f"{signal.Signals(signal_number).name}{', ' + fields.pop('name') if 'name' in fields else ''}"
    return Input(command, code, "", setup, while_running=while_running, name=name, **fields)


def check_no_leftover(cwd: Path) -> None:
    """Check that the folder has no hidden or partial file."""
    leftover = [path.name for path in cwd.rglob("*") if path.name.startswith(".") or path.suffix == ".partial"]
    assert not leftover, leftover


def check_finished(cwd: Path) -> None:
    """Check that the run has a result."""
    check_no_leftover(cwd)
    assert 0 <= json.loads((cwd / "new/result.json").read_bytes())["top1"] <= 1


def check_predicted(cwd: Path) -> None:
    """Check that all 400 images have predictions."""
    check_no_leftover(cwd)
    check_predictions(400)(cwd)


def limit_file_size(max_bytes: int) -> Callable[[int, Path], None]:
    """Limit the size of the files that a process writes, which simulates a full disk."""
    return lambda process, cwd: resource.prlimit(process, resource.RLIMIT_FSIZE, (max_bytes, max_bytes)) and None


PREDICT = "predict {run} many"
DELAYS = (0.4, 0.6, 0.9, 1.3)  # seconds until the signal; most are during the imports

PROCESSES: list[Input] = [
    *(
        interrupted(
            "predict {run} {photo}",
            signal_number,
            signal_after(delay, signal_number),
            new_process=True,
            name=f"after {delay} s",
        )
        for signal_number in (TERM, INT, HUP)
        for delay in DELAYS
    ),
    *(
        interrupted(
            TRAIN_LONGER,
            signal_number,
            signal_once_exists("new/metrics.csv", signal_number),
            rerun=True,
            check=check_finished,
        )
        for signal_number in (TERM, INT, HUP)
    ),
    interrupted(
        TRAIN_LONGER, KILL, signal_once_exists("new/checkpoints/last.ckpt", KILL), rerun=True, check=check_finished
    ),
    interrupted(
        TRAIN_LONGER, KILL, signal_once_exists("new/recipe.json", KILL), rerun=True, check=check_finished, name="early"
    ),
    *(
        interrupted(
            PREDICT,
            signal_number,
            signal_once_exists("predictions.jsonl.partial", signal_number),
            many_images(400),
            rerun=True,
            check=check_predicted,
        )
        for signal_number in (TERM, INT, HUP, KILL)
    ),
    *(
        interrupted(LAYER, signal_number, signal_once_exists("new/results.json", signal_number), rerun=True)
        for signal_number in (TERM, INT)
    ),
    rejected(
        TRAIN,
        "large|disk|space|File",
        while_running=limit_file_size(50_000),
        allowed_lines=".",
        allowed_files="new(/.*)?",
        name="a full disk while writing a checkpoint",
    ),
    rejected(
        PREDICT,
        "large|disk|space|File",
        many_images(20),
        while_running=limit_file_size(500),
        allowed_lines=".",
        allowed_files=r"predictions\.jsonl\.partial",
        name="a full disk",
    ),
    rejected(
        "shard {images} new --processes 1",
        "large|disk|space|File",
        while_running=limit_file_size(2000),
        allowed_lines=".",
        allowed_files="new(/.*)?",
        name="a full disk",
    ),
    rejected("tables 3 --out t.txt", "large|disk|space|File", while_running=limit_file_size(100), name="a full disk"),
    rejected("predict {run} {photo} --out /dev/full", "/dev/full"),
    rejected("tables 3 --out /dev/full/x", "/dev/full"),
    accepted(
        "predict {run} a.png", "1 images", image("a.png"), check=check_predictions(1), new_process=True, time_limit=120
    ),
    rejected("trian", "train", new_process=True),
    rejected("predict {run} nowhere", "nowhere", new_process=True),
    rejected("train --epochs 0", "epochs", new_process=True),
    accepted(RESUME, "top-1", unfinished, check=check_result, new_process=True, time_limit=120),
    accepted("--version", r"lambdanets \d", new_process=True),
]
