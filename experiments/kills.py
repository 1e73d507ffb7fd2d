"""Kills a small training run by SIGKILL at random times, and checks that it resumes bit-identically.

    PYTHONPATH=src python experiments/kills.py [--kills 50] [--seed 0] [--out FILE]
    PYTHONPATH=src python experiments/kills.py --page docs/faults.md --out FILE          write the page's table

A run is killed up to five times. After each kill a copy of its folder is resumed and trained to the end; after the last
kill the folder itself is. Each must end with the same weights, metrics.csv, best.ckpt, top-1 and file names as an
uninterrupted run. The kills are drawn at random to cover all phases: at any time, within a phase, in the middle of
writing a file, and between the two renames of a checkpoint. The runs are forked to save the time of the imports, so the
script needs a machine without a GPU.
"""

import argparse
import csv
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
from pages import markers, replace_section
from PIL import Image

from lambdanets import folders
from lambdanets.models.weights import read_weights
from lambdanets.provenance import commit, hardware, versions
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.text_tables import markdown_table
from lambdanets.training import run, run_log
from lambdanets.training.checkpoints import BEST, LAST, PREVIOUS, AtomicCheckpointIO
from lambdanets.training.classification.recipe import ClassificationRecipe

# Phases of a run. A run is in a phase while one of the phase's functions is executing.
PHASES: dict[str, list[tuple[Any, str]]] = {
    "loading data, building the model": [],  # the phase while none of the other functions is executing
    "creating the folder": [(folders, "locked_folder"), (run, "_write_recipe")],
    "reading the checkpoint": [(run, "newest_checkpoint"), (run, "check_resumable")],
    "training": [(Trainer, "fit")],
    "writing a checkpoint": [(AtomicCheckpointIO, "save_checkpoint")],
    "validation": [(lightning.pytorch.loops._EvaluationLoop, "run")],
    "weights, figures, result": [(run, "_finish")],
}
PHASE_NAMES = list(PHASES)
HALF_FILE, RENAME = "half a file", "a rename"
UNFINISHED, ONLY_BEFORE = "left_unfinished_file", "left_only_before_ckpt"
KILLS_PER_RUN = 5
BEGIN, END = markers("kills")


class PhaseRecorder:
    """Records a child process's current phase, and the count and seconds of all phases, in shared memory."""

    def __init__(self) -> None:
        shared = np.frombuffer(mmap.mmap(-1, 8 * (1 + 2 * len(PHASE_NAMES))), np.float64)
        self._phase, self.counts, self.seconds = np.split(shared, [1, 1 + len(PHASE_NAMES)])

    @property
    def phase(self) -> str:
        return PHASE_NAMES[int(self._phase[0])]

    def patch(self, owner: Any, name: str, phase: int) -> None:
        """Replace the function `owner.name` by one that also records the phase."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            outer, start = self._phase[0], time.perf_counter()
            self._phase[0] = phase
            self.counts[phase] += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._phase[0] = outer
                self.seconds[phase] += time.perf_counter() - start

        setattr(owner, name, patched)


@dataclass(frozen=True)
class KillPoint:
    """When to kill: `seconds` after a phase started for the count-th time, or at the count-th file or rename."""

    event: str  # a phase, HALF_FILE or RENAME
    count: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class ChildResult:
    """How a child process ended, in which phase, and after how many seconds."""

    killed: bool
    phase: str
    seconds: float
    recorder: PhaseRecorder


def write_images(folder: Path) -> Path:
    """Write 18 noise images of 12 x 10 pixels in each of two classes, dark and light."""
    generator = np.random.default_rng(0)
    for name, brightness in (("dark", 95), ("light", 160)):
        (folder / name).mkdir(parents=True)
        for number in range(18):
            pixels = np.clip(generator.normal(brightness, 50, (10, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")
    return folder


def make_recipe(images: Path) -> ClassificationRecipe:
    """A recipe with all random augmentations, gradient accumulation and EMA; 12 steps, a checkpoint after each."""
    return replace(
        DIGITS,
        data=str(images), channels=3, image_size=8, epochs=3, batch_size=8, micro_batch=4, learning_rate=0.03,
        warmup_epochs=0.5, drop_path=0.2, dropout=0.1, flip=0.5, rand_augment="rand-m5-n1", ema_decay=0.9,
        checkpoint_every=1,
    )  # fmt: skip


def run_child(recipe: ClassificationRecipe, folder: Path, kill_point: KillPoint | None = None) -> ChildResult:
    """Start or resume a run in a child process and kill it at the kill point. Raises RuntimeError if the run fails."""
    recorder, log = PhaseRecorder(), Path(f"{folder}.log")
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        _train_in_child(recipe, folder, recorder, kill_point, log)
    ended = status = 0
    if kill_point is not None and kill_point.event in PHASES:
        phase, kill_time = PHASE_NAMES.index(kill_point.event), float("inf")
        while not ended and time.perf_counter() < kill_time:
            if kill_time == float("inf") and recorder.counts[phase] >= kill_point.count:
                kill_time = time.perf_counter() + kill_point.seconds
            time.sleep(min(0.0002, kill_point.seconds))
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
    status = status if ended else os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if status and not killed:
        raise RuntimeError(f"the run failed with status {status}:\n{log.read_text(errors='replace')}")
    return ChildResult(killed, recorder.phase, time.perf_counter() - start, recorder)


def _train_in_child(
    recipe: ClassificationRecipe, folder: Path, recorder: PhaseRecorder, kill_point: KillPoint | None, log: Path
) -> None:
    """Train in a child process, and exit it."""
    code = 1
    try:
        output = log.open("w")
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        recorder.counts[0] = 1
        for number, functions in enumerate(PHASES.values()):
            for owner, name in functions:
                recorder.patch(owner, name, number)
        if kill_point is not None and kill_point.event not in PHASES:
            _kill_at_file_operation(kill_point)
        run.start(recipe, folder)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _kill_at_file_operation(kill_point: KillPoint) -> None:
    """Patch this process to kill itself when half of a file is written, or before a rename."""
    owner: Any = os if kill_point.event == HALF_FILE else Path
    name = "fsync" if kill_point.event == HALF_FILE else "replace"
    original, calls = getattr(owner, name), iter(range(1, kill_point.count))

    def patched(subject: Any, *args: Any) -> Any:
        if next(calls, None) is not None:
            return original(subject, *args)
        if kill_point.event == HALF_FILE:
            os.ftruncate(subject, os.fstat(subject).st_size // 2)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, patched)


def read_metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv without the columns of speed and memory."""
    with (folder / run_log.METRICS).open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in run_log.SPEED} for row in csv.DictReader(file)]


def check_bit_identical(uninterrupted: Path, folder: Path) -> None:
    """Raise AssertionError unless two runs have bit-identical results and the same file names."""
    weights = [(path / run.WEIGHTS).read_bytes() for path in (uninterrupted, folder)]
    assert weights[0] == weights[1], f"{folder} ended with different {run.WEIGHTS}"
    metrics = [read_metrics(path) for path in (uninterrupted, folder)]
    assert metrics[0] == metrics[1], f"{folder} ended with different metrics"
    expected, actual = (read_weights(path / "checkpoints" / BEST)[0] for path in (uninterrupted, folder))
    equal = all(torch.equal(expected[name], actual[name]) for name in expected | actual)
    assert equal, f"{folder} ended with a different {BEST}"
    expected_top1, top1 = (json.loads((path / run.RESULT).read_text())["top1"] for path in (uninterrupted, folder))
    assert top1 == expected_top1, f"{folder} ended with top-1 {top1}, not {expected_top1}"
    different = file_names(folder) ^ file_names(uninterrupted)
    assert not different, f"{folder} ended with different files: {different}"


def file_names(folder: Path) -> set[str]:
    """Files of a run except those of TensorBoard, since each start of the run adds one."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith("tensorboard/")}


def draw_kill_point(generator: random.Random, uninterrupted: ChildResult, resumes: bool) -> KillPoint:
    """Draw when to kill next, given the times of an uninterrupted run. resumes: whether the killed run resumes."""
    missing_phase, short_phase = PHASE_NAMES[1 if resumes else 2], PHASE_NAMES[2 if resumes else 1]
    frequent = ["any time", "any time", HALF_FILE, HALF_FILE, RENAME, RENAME, "training", short_phase]
    event = generator.choice([*frequent, *(name for name in PHASE_NAMES if name != missing_phase)])
    if event == "any time":
        return KillPoint(PHASE_NAMES[0], 1, generator.uniform(0, uninterrupted.seconds))
    if event not in PHASES:  # most checkpoints need two renames, the first one from last.ckpt to before.ckpt
        return KillPoint(event, generator.choice([1, 2, 4, 5] if resumes or event == HALF_FILE else [1, 4, 6]))
    count = max(1, int(uninterrupted.recorder.counts[PHASE_NAMES.index(event)]))
    seconds = uninterrupted.recorder.seconds[PHASE_NAMES.index(event)] / count
    # 0 s were recorded for the first phase, which has no end, and for reading a checkpoint, which this run did not do
    return KillPoint(
        event, generator.randint(1, min(count, 3)), generator.uniform(0, seconds if seconds > 0.001 else 0.02)
    )


def kill_and_check(
    recipe: ClassificationRecipe, uninterrupted: Path, folder: Path, kill_point: KillPoint
) -> dict[str, Any] | None:
    """Kill a new or resumed run, and check that a copy ends bit-identically; None if it ended before the kill."""
    outcome = run_child(recipe, folder, kill_point)
    if not outcome.killed:
        return None
    files = file_names(folder)
    copy = folder.with_name(f"{folder.name}-copy")
    if folder.exists():
        shutil.copytree(folder, copy)
    run_child(recipe, copy)
    check_bit_identical(uninterrupted, copy)
    shutil.rmtree(copy)
    return {
        "phase": outcome.phase,
        "seconds": round(outcome.seconds, 3),
        "kill_point": dataclasses.asdict(kill_point),
        UNFINISHED: any(name.endswith(".unfinished") for name in files),
        ONLY_BEFORE: f"checkpoints/{PREVIOUS}" in files and f"checkpoints/{LAST}" not in files,
    }


def kill_runs(recipe: ClassificationRecipe, scratch: Path, kills: int, seed: int) -> tuple[list[dict[str, Any]], int]:
    """Kill runs `kills` times in total, and let each run finish. Returns the kills, and the number of runs."""
    generator = random.Random(seed)
    uninterrupted = scratch / "uninterrupted"
    uninterrupted_result = run_child(recipe, uninterrupted)
    results: list[dict[str, Any]] = []
    runs = 0
    while len(results) < kills:
        folder = scratch / f"run{runs}"
        runs += 1
        for _ in range(min(KILLS_PER_RUN, kills - len(results))):
            kill_point = draw_kill_point(generator, uninterrupted_result, (folder / run.RECIPE).exists())
            kill = kill_and_check(recipe, uninterrupted, folder, kill_point)
            if kill is None:
                break
            results.append({"run": runs, **kill})
            print(f"{len(results):>4}  run {runs:>3}  {kill['seconds']:6.2f} s  {kill['phase']}", flush=True)
        run_child(recipe, folder)
        check_bit_identical(uninterrupted, folder)
        shutil.rmtree(folder)
    return results, runs


def write_page(page: Path, result: dict[str, Any]) -> None:
    replace_section(page, (BEGIN, END), section(result))


def section(result: dict[str, Any]) -> str:
    """The table of phases, and a summary of the kills."""
    if {*result["by_phase"]} != {*PHASES} or result["kills"] != sum(result["by_phase"].values()):
        raise ValueError(
            f"results must have the phases {PHASE_NAMES}, got other phases or counts; run the script again"
        )
    events = Counter(kill["kill_point"]["event"] for kill in result["each"])
    rows = [[phase, str(count)] for phase, count in result["by_phase"].items()]
    return "\n".join(
        [
            markdown_table(["phase", "kills"], *rows),
            "",
            f"The {result['kills']} kills were spread over {result['runs']} runs: {events[HALF_FILE]} in the middle of "
            f"writing a file, {events[RENAME]} before a rename,",
            "the others at a random time within a phase or the whole run. "
            f"After {result[UNFINISHED]} an unfinished file was left in the",
            f"folder, after {result[ONLY_BEFORE]} a before.ckpt and no last.ckpt.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="number of kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--page", type=Path, help="write the results in --out into this page; run nothing")
    options = parser.parse_args()
    if options.page:
        write_page(options.page, json.loads(options.out.read_text(encoding="utf-8")))
        return
    torch.set_num_threads(1)  # forking a process with threads is not safe
    with tempfile.TemporaryDirectory() as scratch:
        recipe = make_recipe(write_images(Path(scratch) / "images"))
        results, runs = kill_runs(recipe, Path(scratch), options.kills, options.seed)
    counts = Counter(kill["phase"] for kill in results)
    by_phase = {phase: counts[phase] for phase in PHASE_NAMES}
    print(f"\n{len(results)} kills of {runs} runs, all bit-identical in the end")
    print(*(f"{count:>4}  {phase}" for phase, count in by_phase.items()), sep="\n")
    leftovers = {name: sum(kill[name] for kill in results) for name in results[0] if name.startswith("left")}
    print(
        f"after {leftovers[UNFINISHED]}: unfinished file; after {leftovers[ONLY_BEFORE]}: before.ckpt but no last.ckpt"
    )
    result = {
        "kills": len(results),
        "runs": runs,
        "by_phase": by_phase,
        **leftovers,
        "seed": options.seed,
        "recipe": dataclasses.asdict(dataclasses.replace(recipe, data="two classes of 18 noise images")),
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
        "each": results,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
