"""Signals, kill -9, full disks, and full outputs; some inputs run as new processes."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .images import predictions
from .inputs import Input, Make, accepted, refused
from .makers import image
from .options import TRAIN
from .runs import RESUME, unfinished, valid_result

TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
LONGER = TRAIN.replace("--epochs 1", "--epochs 10 --checkpoint-every 1")
LAYER = (
    "benchmark layer --shapes 4x4x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 3 --candidates lambdanets --out new"
)


def many(count: int) -> Make:
    """A folder of hard links to one image."""

    def make(here: Path, places: Mapping[str, Any]) -> None:
        (here / "many").mkdir()
        for number in range(count):
            os.link(places["photo"], here / f"many/{number:05}.png")

    return make


def after(seconds: float, number: int) -> Callable[[int, Path], None]:
    """Send a signal after `seconds`."""

    def send(process: int, here: Path) -> None:
        time.sleep(seconds)
        os.kill(process, number)

    return send


def once_exists(path: str, number: int) -> Callable[[int, Path], None]:
    """Send a signal once a path exists, or after 20 s."""

    def send(process: int, here: Path) -> None:
        until = time.monotonic() + 20
        while not (here / path).exists() and time.monotonic() < until:
            time.sleep(0.002)
        os.kill(process, number)

    return send


def ended(command: str, number: int, when: Callable[[int, Path], None], *make: Make, **more: Any) -> Input:
    """A command ended by a signal: it must print no traceback and end with exit code 130."""
    code = -number if number == KILL else 130
    name = f"{signal.Signals(number).name}{', ' + more.pop('name') if 'name' in more else ''}"
    return Input(command, code, "", make, during=when, name=name, **more)


def no_leftover(here: Path) -> None:
    """Check that no hidden or partial file is left."""
    left = [path.name for path in here.rglob("*") if path.name.startswith(".") or path.suffix == ".partial"]
    assert not left, left


def finished(here: Path) -> None:
    no_leftover(here)
    assert 0 <= json.loads((here / "new/result.json").read_bytes())["top1"] <= 1


def predicted(here: Path) -> None:
    no_leftover(here)
    predictions(400)(here)


def smaller_files(most: int) -> Callable[[int, Path], None]:
    """Limit the size of a process's files, to simulate a full disk."""
    return lambda process, here: resource.prlimit(process, resource.RLIMIT_FSIZE, (most, most)) and None


PREDICT = "predict {run} many"
MOMENTS = (0.4, 0.6, 0.9, 1.3)  # seconds, mostly during imports

PROCESSES: list[Input] = [
    *(
        ended("predict {run} {photo}", number, after(moment, number), alone=True, name=f"after {moment} s")
        for number in (TERM, INT, HUP)
        for moment in MOMENTS
    ),
    *(
        ended(LONGER, number, once_exists("new/metrics.csv", number), again=True, check=finished)
        for number in (TERM, INT, HUP)
    ),
    ended(LONGER, KILL, once_exists("new/checkpoints/last.ckpt", KILL), again=True, check=finished),
    ended(LONGER, KILL, once_exists("new/recipe.json", KILL), again=True, check=finished, name="early"),
    *(
        ended(PREDICT, number, once_exists("predictions.jsonl.partial", number), many(400), again=True, check=predicted)
        for number in (TERM, INT, HUP, KILL)
    ),
    *(ended(LAYER, number, once_exists("new/results.json", number), again=True) for number in (TERM, INT)),
    refused(
        TRAIN,
        "large|disk|space|File",
        during=smaller_files(50_000),
        lines=".",
        leaves="new(/.*)?",
        name="a disk that is full when the checkpoint is written",
    ),
    refused(
        PREDICT,
        "large|disk|space|File",
        many(20),
        during=smaller_files(500),
        lines=".",
        leaves=r"predictions\.jsonl\.partial",
        name="a disk that is full",
    ),
    refused(
        "shard {images} new --processes 1",
        "large|disk|space|File",
        during=smaller_files(2000),
        lines=".",
        leaves="new(/.*)?",
        name="a disk that is full",
    ),
    refused("tables 3 --out t.txt", "large|disk|space|File", during=smaller_files(100), name="a disk that is full"),
    refused("predict {run} {photo} --out /dev/full", "/dev/full"),
    refused("tables 3 --out /dev/full/x", "/dev/full"),
    accepted("predict {run} a.png", "1 images", image("a.png"), check=predictions(1), alone=True, seconds=120),
    refused("trian", "train", alone=True),
    refused("predict {run} nowhere", "nowhere", alone=True),
    refused("train --epochs 0", "epochs", alone=True),
    accepted(RESUME, "top-1", unfinished, check=valid_result, alone=True, seconds=120),
    accepted("--version", r"lambdanets \d", alone=True),
]
