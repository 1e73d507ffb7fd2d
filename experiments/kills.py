"""Kills a small training run by SIGKILL at random moments, and checks each time that it goes on to the same bits.

    PYTHONPATH=src python experiments/kills.py [--kills 50] [--seed 0] [--out FILE]
    PYTHONPATH=src python experiments/kills.py --page docs/faults.md --out FILE          write the page's table again

A run is killed up to five times. After each kill a copy of its folder is trained to the end by the same call of
`run.start`, and so is the folder itself in the end; weights, metrics.csv, best.ckpt and top-1 must be those of an
unbroken run, and nothing may lie in the folder that does not lie in the unbroken run's. Moments are drawn so that all
phases are hit: at any time, within a phase, in the middle of writing a file, and between the two renames of a
checkpoint. Needs fork, which saves importing everything for each attempt; not for machines with a GPU.
"""

import argparse
import dataclasses
import functools
import json
import mmap
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch.loops
import matplotlib.backends.backend_agg  # noqa: F401 - what a run imports late, imported once for all attempts
import numpy as np
import torch
import torch.utils.tensorboard
from lightning.pytorch import Trainer
from PIL import Image

from lambdanets import folders
from lambdanets.models.weights import read_weights
from lambdanets.provenance import commit, hardware, versions
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.text_tables import markdown_table
from lambdanets.training import run
from lambdanets.training.checkpoints import BEFORE, BEST, LAST, AtomicCheckpointIO
from lambdanets.training.recipe import Recipe

# A phase, and the functions of a run that are it.
PHASES: dict[str, list[tuple[Any, str]]] = {
    "opening data, building the model": [],  # whatever is before all others
    "making the folder": [(folders, "locked_folder"), (run, "_write_recipe")],
    "reading the checkpoint": [(run, "newest"), (run, "check_resumable")],
    "training": [(Trainer, "fit")],
    "writing a checkpoint": [(AtomicCheckpointIO, "save_checkpoint")],
    "validation": [(lightning.pytorch.loops._EvaluationLoop, "run")],
    "weights, pictures, result": [(run, "_finish")],
}
NAMES = list(PHASES)
HALF, RENAME = "half a file", "a rename"
UNFINISHED, NO_LAST = "left_an_unfinished_file", "left_no_last_checkpoint_but_one_before"
KILLS_A_RUN = 5
BEGIN, END = "<!-- written by experiments/kills.py -->\n", "<!-- end of kills -->\n"


class Board:
    """What a child tells of itself as it goes: its phase, and for each how often it began and how long it took."""

    def __init__(self) -> None:
        shared = np.frombuffer(mmap.mmap(-1, 8 * (1 + 2 * len(NAMES))), np.float64)
        self._phase, self.begun, self.seconds = np.split(shared, [1, 1 + len(NAMES)])

    @property
    def phase(self) -> str:
        return NAMES[int(self._phase[0])]

    def mark(self, owner: Any, name: str, phase: int) -> None:
        """Have a function tell when it begins and ends, as a phase."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def marked(*given: Any, **named: Any) -> Any:
            before, began = self._phase[0], time.perf_counter()
            self._phase[0] = phase
            self.begun[phase] += 1
            try:
                return original(*given, **named)
            finally:
                self._phase[0] = before
                self.seconds[phase] += time.perf_counter() - began

        setattr(owner, name, marked)


@dataclass(frozen=True)
class Aim:
    """When to kill: so long after a phase began for the count-th time, or at the count-th file or rename."""

    at: str
    count: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """How a child ended, in which phase, after how long."""

    killed: bool
    phase: str
    seconds: float
    board: Board


def draw_images(folder: Path) -> Path:
    """Noise of 12 x 10 pixels in two classes, a dark and a light one, 18 images each."""
    generator = np.random.default_rng(0)
    for name, bright in (("dark", 95), ("light", 160)):
        (folder / name).mkdir(parents=True)
        for number in range(18):
            pixels = np.clip(generator.normal(bright, 50, (10, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")
    return folder


def recipe_on(images: Path) -> Recipe:
    """All that is random, in parts of a step, with averaged weights: 12 steps, 4 an epoch, a checkpoint after each."""
    return replace(
        DIGITS,
        data=str(images), channels=3, image_size=8, epochs=3, batch_size=8, micro_batch=4, learning_rate=0.03,
        warmup_epochs=0.5, drop_path=0.2, dropout=0.1, flip=0.5, rand_augment="rand-m5-n1", ema_decay=0.9,
        checkpoint_every=1,
    )  # fmt: skip


def attempt(recipe: Recipe, folder: Path, aim: Aim | None = None) -> Attempt:
    """Start or go on with a run in a child, and kill it as aimed. RuntimeError where the child fails by itself."""
    board, told = Board(), Path(f"{folder}.log")
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        _be_child(recipe, folder, board, aim, told)
    ended = status = 0
    if aim is not None and aim.at in PHASES:
        phase, until = NAMES.index(aim.at), float("inf")
        while not ended and time.perf_counter() < until:
            if until == float("inf") and board.begun[phase] >= aim.count:
                until = time.perf_counter() + aim.seconds
            time.sleep(min(0.0002, aim.seconds))
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
    status = status if ended else os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if status and not killed:
        raise RuntimeError(f"the run failed with status {status}:\n{told.read_text(errors='replace')}")
    return Attempt(killed, board.phase, time.perf_counter() - began, board)


def _be_child(recipe: Recipe, folder: Path, board: Board, aim: Aim | None, told: Path) -> None:
    """Train, and end the process in any case."""
    code = 1
    try:
        log = told.open("w")
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        board.begun[0] = 1
        for number, functions in enumerate(PHASES.values()):
            for owner, name in functions:
                board.mark(owner, name, number)
        if aim is not None and aim.at not in PHASES:
            _set_trap(aim)
        run.start(recipe, folder)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _set_trap(aim: Aim) -> None:
    """Have the process kill itself when half of a file is written, or before a file takes its place."""
    owner: Any = os if aim.at == HALF else Path
    name = "fsync" if aim.at == HALF else "replace"
    original, calls = getattr(owner, name), iter(range(1, aim.count))

    def trapped(subject: Any, *given: Any) -> Any:
        if next(calls, None) is not None:
            return original(subject, *given)
        if aim.at == HALF:
            os.ftruncate(subject, os.fstat(subject).st_size // 2)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, trapped)


def check_same_end(unbroken: Path, folder: Path) -> None:
    """Raise AssertionError unless two runs ended with the same bits and the same files."""
    for name in (run.WEIGHTS, "metrics.csv"):
        assert (folder / name).read_bytes() == (unbroken / name).read_bytes(), f"{folder} ended with another {name}"
    best, other = (read_weights(place / "checkpoints" / BEST)[0] for place in (unbroken, folder))
    assert all(torch.equal(best[name], other[name]) for name in best | other), f"{folder} ended with another {BEST}"
    top1, other_top1 = (json.loads((place / run.RESULT).read_text())["top1"] for place in (unbroken, folder))
    assert top1 == other_top1, f"{folder} ended with top-1 {other_top1}, not {top1}"
    assert files_in(folder) == files_in(unbroken), f"{folder} holds {files_in(folder) ^ files_in(unbroken)}"


def files_in(folder: Path) -> set[str]:
    """Names of the files of a run, but for TensorBoard's, of which each attempt adds its own."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith("tensorboard/")}


def draw_aim(generator: random.Random, whole: Attempt, begun: bool) -> Aim:
    """The next kill's moment, for a run that has begun or not; lengths of phases are the unbroken run's."""
    never, soon = NAMES[1 if begun else 2], NAMES[2 if begun else 1]
    often = ["any time", "any time", HALF, HALF, RENAME, RENAME, "training", soon]
    at = generator.choice([*often, *(name for name in NAMES if name != never)])
    if at == "any time":
        return Aim(NAMES[0], 1, generator.uniform(0, whole.seconds))
    if at not in PHASES:  # most checkpoints have two renames, the first one's of last.ckpt to before.ckpt
        return Aim(at, generator.choice([1, 2, 4, 5] if begun or at == HALF else [1, 4, 6]))
    times = max(1, int(whole.board.begun[NAMES.index(at)]))
    seconds = whole.board.seconds[NAMES.index(at)] / times
    # the first phase has no end, and the unbroken run read no checkpoint
    return Aim(at, generator.randint(1, min(times, 3)), generator.uniform(0, seconds if seconds > 0.001 else 0.02))


def kill_and_check(recipe: Recipe, unbroken: Path, folder: Path, aim: Aim) -> dict[str, Any] | None:
    """Go on with a run, kill it as aimed and see that a copy ends as the unbroken run; None where it ended before."""
    outcome = attempt(recipe, folder, aim)
    if not outcome.killed:
        return None
    left = files_in(folder)
    copy = folder.with_name(f"{folder.name}-copy")
    if folder.exists():
        shutil.copytree(folder, copy)
    attempt(recipe, copy)
    check_same_end(unbroken, copy)
    shutil.rmtree(copy)
    return {
        "phase": outcome.phase,
        "seconds": round(outcome.seconds, 3),
        "aim": dataclasses.asdict(aim),
        UNFINISHED: any(name.endswith(".unfinished") for name in left),
        NO_LAST: f"checkpoints/{BEFORE}" in left and f"checkpoints/{LAST}" not in left,
    }


def kill_runs(recipe: Recipe, scratch: Path, kills: int, seed: int) -> tuple[list[dict[str, Any]], int]:
    """So many kills, spread over runs which all go on to the unbroken run's end; what each hit, and how many runs."""
    generator = random.Random(seed)
    unbroken = scratch / "unbroken"
    whole = attempt(recipe, unbroken)
    done: list[dict[str, Any]] = []
    runs = 0
    while len(done) < kills:
        folder = scratch / f"run{runs}"
        runs += 1
        for _ in range(min(KILLS_A_RUN, kills - len(done))):
            aim = draw_aim(generator, whole, (folder / run.RECIPE).exists())
            kill = kill_and_check(recipe, unbroken, folder, aim)
            if kill is None:
                break
            done.append({"run": runs, **kill})
            print(f"{len(done):>4}  run {runs:>3}  {kill['seconds']:6.2f} s  {kill['phase']}", flush=True)
        attempt(recipe, folder)
        check_same_end(unbroken, folder)
        shutil.rmtree(folder)
    return done, runs


def write_page(page: Path, result: dict[str, Any]) -> None:
    """Write what a result says of the kills between the markers of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + BEGIN + section(result) + END + after, encoding="utf-8")


def section(result: dict[str, Any]) -> str:
    """The table of phases, and what each kill was aimed at and left."""
    if {*result["by_phase"]} != {*PHASES} or result["kills"] != sum(result["by_phase"].values()):
        raise ValueError("a result of another version of this script: it has other phases")
    aims = Counter(kill["aim"]["at"] for kill in result["each"])
    rows = [[phase.replace("pictures", "figures"), str(count)] for phase, count in result["by_phase"].items()]
    return "\n".join(
        [
            markdown_table(["phase", "kills"], *rows),
            "",
            f"The {result['kills']} kills were spread over {result['runs']} runs: {aims[HALF]} in the middle of "
            f"writing a file, {aims[RENAME]} before a rename,",
            "the others at a random time within a phase or the whole run. "
            f"After {result[UNFINISHED]} an unfinished file was left in the",
            f"folder, after {result[NO_LAST]} a before.ckpt and no last.ckpt.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write what was hit as JSON")
    parser.add_argument("--page", type=Path, help="kill nothing; write the table of --out into this page")
    options = parser.parse_args()
    if options.page:
        write_page(options.page, json.loads(options.out.read_text(encoding="utf-8")))
        return
    torch.set_num_threads(1)  # a process that has begun threads is not safe to fork
    with tempfile.TemporaryDirectory() as scratch:
        recipe = recipe_on(draw_images(Path(scratch) / "images"))
        done, runs = kill_runs(recipe, Path(scratch), options.kills, options.seed)
    counts = Counter(kill["phase"] for kill in done)
    by_phase = {phase: counts[phase] for phase in NAMES}
    print(f"\n{len(done)} kills of {runs} runs, each of which ended as the unbroken run")
    print(*(f"{count:>4}  {phase}" for phase, count in by_phase.items()), sep="\n")
    left = {name: sum(kill[name] for kill in done) for name in done[0] if name.startswith("left")}
    print(f"after {left[UNFINISHED]} an unfinished file lay there; after {left[NO_LAST]} before.ckpt and no last.ckpt")
    result = {
        "kills": len(done),
        "runs": runs,
        "by_phase": by_phase,
        **left,
        "seed": options.seed,
        "recipe": dataclasses.asdict(dataclasses.replace(recipe, data="two classes of 18 noise images")),
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
        "each": done,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
