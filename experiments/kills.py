"""Kills a small training run by SIGKILL at random times, and checks that it resumes bit-identically.

    PYTHONPATH=src python experiments/kills.py [--kills 50] [--seed 0] [--out FILE]
    PYTHONPATH=src python experiments/kills.py --page docs/faults.md --out FILE          write the page's table

A run is killed up to five times. After each kill a copy of its folder is resumed and trained to the end, and in the end
the folder itself. Weights, metrics.csv, best.ckpt, top-1 and the files in the folder must equal those of an
uninterrupted run. Kill times are drawn to cover all phases: at any time, within a phase, in the middle of writing a
file, and between the two renames of a checkpoint. Uses fork to save the imports, so it needs a machine without GPU.
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
import matplotlib.backends.backend_agg  # noqa: F401 - imported lazily by a run; imported here once for all forks
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
from lambdanets.training.checkpoints import BEST, LAST, PREVIOUS, AtomicCheckpointIO
from lambdanets.training.recipe import Recipe

# Phases of a run, and the functions that implement them.
PHASES: dict[str, list[tuple[Any, str]]] = {
    "opening data, building the model": [],  # before all other phases
    "making the folder": [(folders, "locked_folder"), (run, "_write_recipe")],
    "reading the checkpoint": [(run, "newest_checkpoint"), (run, "check_resumable")],
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


class SharedPhase:
    """Shared memory in which a child records its current phase, and the count and seconds of every phase."""

    def __init__(self) -> None:
        shared = np.frombuffer(mmap.mmap(-1, 8 * (1 + 2 * len(NAMES))), np.float64)
        self._phase, self.counts, self.seconds = np.split(shared, [1, 1 + len(NAMES)])

    @property
    def phase(self) -> str:
        return NAMES[int(self._phase[0])]

    def record(self, owner: Any, name: str, phase: int) -> None:
        """Patch a function so that it records its phase."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            outer, start = self._phase[0], time.perf_counter()
            self._phase[0] = phase
            self.counts[phase] += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._phase[0] = outer
                self.seconds[phase] += time.perf_counter() - start

        setattr(owner, name, recorded)


@dataclass(frozen=True)
class Aim:
    """When to kill: `seconds` after a phase started for the count-th time, or at the count-th file or rename."""

    at: str
    count: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """How a child process ended, in which phase, after how many seconds."""

    killed: bool
    phase: str
    seconds: float
    phases: SharedPhase


def draw_images(folder: Path) -> Path:
    """Noise images of 12 x 10 pixels in two classes, dark and light, 18 images each."""
    generator = np.random.default_rng(0)
    for name, bright in (("dark", 95), ("light", 160)):
        (folder / name).mkdir(parents=True)
        for number in range(18):
            pixels = np.clip(generator.normal(bright, 50, (10, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")
    return folder


def recipe_on(images: Path) -> Recipe:
    """Every random augmentation, gradient accumulation and EMA; 12 steps in 3 epochs, a checkpoint after each step."""
    return replace(
        DIGITS,
        data=str(images), channels=3, image_size=8, epochs=3, batch_size=8, micro_batch=4, learning_rate=0.03,
        warmup_epochs=0.5, drop_path=0.2, dropout=0.1, flip=0.5, rand_augment="rand-m5-n1", ema_decay=0.9,
        checkpoint_every=1,
    )  # fmt: skip


def attempt(recipe: Recipe, folder: Path, aim: Aim | None = None) -> Attempt:
    """Start or resume a run in a child process and kill it as aimed. RuntimeError if the child fails by itself."""
    phases, log = SharedPhase(), Path(f"{folder}.log")
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        _run_child(recipe, folder, phases, aim, log)
    ended = status = 0
    if aim is not None and aim.at in PHASES:
        phase, until = NAMES.index(aim.at), float("inf")
        while not ended and time.perf_counter() < until:
            if until == float("inf") and phases.counts[phase] >= aim.count:
                until = time.perf_counter() + aim.seconds
            time.sleep(min(0.0002, aim.seconds))
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
    status = status if ended else os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if status and not killed:
        raise RuntimeError(f"the run failed with status {status}:\n{log.read_text(errors='replace')}")
    return Attempt(killed, phases.phase, time.perf_counter() - start, phases)


def _run_child(recipe: Recipe, folder: Path, phases: SharedPhase, aim: Aim | None, log: Path) -> None:
    """Train, and always exit the process."""
    code = 1
    try:
        output = log.open("w")
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        phases.counts[0] = 1
        for number, functions in enumerate(PHASES.values()):
            for owner, name in functions:
                phases.record(owner, name, number)
        if aim is not None and aim.at not in PHASES:
            _kill_at_file_operation(aim)
        run.start(recipe, folder)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _kill_at_file_operation(aim: Aim) -> None:
    """Patch the process to kill itself when half of a file is written, or before a rename."""
    owner: Any = os if aim.at == HALF else Path
    name = "fsync" if aim.at == HALF else "replace"
    original, calls = getattr(owner, name), iter(range(1, aim.count))

    def patched(subject: Any, *args: Any) -> Any:
        if next(calls, None) is not None:
            return original(subject, *args)
        if aim.at == HALF:
            os.ftruncate(subject, os.fstat(subject).st_size // 2)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, patched)


def check_bit_identical(uninterrupted: Path, folder: Path) -> None:
    """Raise AssertionError unless two runs ended with the same bits and the same files."""
    for name in (run.WEIGHTS, "metrics.csv"):
        assert (folder / name).read_bytes() == (uninterrupted / name).read_bytes(), (
            f"{folder} ended with another {name}"
        )
    best, other = (read_weights(place / "checkpoints" / BEST)[0] for place in (uninterrupted, folder))
    assert all(torch.equal(best[name], other[name]) for name in best | other), f"{folder} ended with another {BEST}"
    top1, other_top1 = (json.loads((place / run.RESULT).read_text())["top1"] for place in (uninterrupted, folder))
    assert top1 == other_top1, f"{folder} ended with top-1 {other_top1}, not {top1}"
    assert files_in(folder) == files_in(uninterrupted), f"{folder} holds {files_in(folder) ^ files_in(uninterrupted)}"


def files_in(folder: Path) -> set[str]:
    """Files of a run, without TensorBoard's, since each attempt adds one."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith("tensorboard/")}


def draw_aim(generator: random.Random, uninterrupted: Attempt, existing: bool) -> Aim:
    """A random time for the next kill, by the phases of the uninterrupted run. existing: whether the run resumes."""
    impossible, early = NAMES[1 if existing else 2], NAMES[2 if existing else 1]
    frequent = ["any time", "any time", HALF, HALF, RENAME, RENAME, "training", early]
    at = generator.choice([*frequent, *(name for name in NAMES if name != impossible)])
    if at == "any time":
        return Aim(NAMES[0], 1, generator.uniform(0, uninterrupted.seconds))
    if at not in PHASES:  # most checkpoints have two renames, the first of last.ckpt to before.ckpt
        return Aim(at, generator.choice([1, 2, 4, 5] if existing or at == HALF else [1, 4, 6]))
    count = max(1, int(uninterrupted.phases.counts[NAMES.index(at)]))
    seconds = uninterrupted.phases.seconds[NAMES.index(at)] / count
    # the first phase has no end, and the uninterrupted run read no checkpoint
    return Aim(at, generator.randint(1, min(count, 3)), generator.uniform(0, seconds if seconds > 0.001 else 0.02))


def kill_and_check(recipe: Recipe, uninterrupted: Path, folder: Path, aim: Aim) -> dict[str, Any] | None:
    """Resume a run, kill it, and check that a copy ends bit-identically; None if it ended before the kill."""
    outcome = attempt(recipe, folder, aim)
    if not outcome.killed:
        return None
    left = files_in(folder)
    copy = folder.with_name(f"{folder.name}-copy")
    if folder.exists():
        shutil.copytree(folder, copy)
    attempt(recipe, copy)
    check_bit_identical(uninterrupted, copy)
    shutil.rmtree(copy)
    return {
        "phase": outcome.phase,
        "seconds": round(outcome.seconds, 3),
        "aim": dataclasses.asdict(aim),
        UNFINISHED: any(name.endswith(".unfinished") for name in left),
        NO_LAST: f"checkpoints/{PREVIOUS}" in left and f"checkpoints/{LAST}" not in left,
    }


def kill_runs(recipe: Recipe, scratch: Path, kills: int, seed: int) -> tuple[list[dict[str, Any]], int]:
    """Kill runs until there are `kills` kills, then let each run finish. Returns the kills, and the number of runs."""
    generator = random.Random(seed)
    uninterrupted = scratch / "uninterrupted"
    first_attempt = attempt(recipe, uninterrupted)
    done: list[dict[str, Any]] = []
    runs = 0
    while len(done) < kills:
        folder = scratch / f"run{runs}"
        runs += 1
        for _ in range(min(KILLS_A_RUN, kills - len(done))):
            aim = draw_aim(generator, first_attempt, (folder / run.RECIPE).exists())
            kill = kill_and_check(recipe, uninterrupted, folder, aim)
            if kill is None:
                break
            done.append({"run": runs, **kill})
            print(f"{len(done):>4}  run {runs:>3}  {kill['seconds']:6.2f} s  {kill['phase']}", flush=True)
        attempt(recipe, folder)
        check_bit_identical(uninterrupted, folder)
        shutil.rmtree(folder)
    return done, runs


def write_page(page: Path, result: dict[str, Any]) -> None:
    """Write the section between its markers into a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + BEGIN + section(result) + END + after, encoding="utf-8")


def section(result: dict[str, Any]) -> str:
    """The table of phases, and a summary of the kills."""
    if {*result["by_phase"]} != {*PHASES} or result["kills"] != sum(result["by_phase"].values()):
        raise ValueError("result must have the phases of this version of the script, got other phases")
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
    parser.add_argument("--kills", type=int, default=50, help="number of kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--page", type=Path, help="only write the table of --out into this page")
    options = parser.parse_args()
    if options.page:
        write_page(options.page, json.loads(options.out.read_text(encoding="utf-8")))
        return
    torch.set_num_threads(1)  # forking a process with threads is not safe
    with tempfile.TemporaryDirectory() as scratch:
        recipe = recipe_on(draw_images(Path(scratch) / "images"))
        done, runs = kill_runs(recipe, Path(scratch), options.kills, options.seed)
    counts = Counter(kill["phase"] for kill in done)
    by_phase = {phase: counts[phase] for phase in NAMES}
    print(f"\n{len(done)} kills of {runs} runs, each of which ended bit-identically")
    print(*(f"{count:>4}  {phase}" for phase, count in by_phase.items()), sep="\n")
    left = {name: sum(kill[name] for kill in done) for name in done[0] if name.startswith("left")}
    print(f"after {left[UNFINISHED]}: an unfinished file left; after {left[NO_LAST]}: before.ckpt but no last.ckpt")
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
