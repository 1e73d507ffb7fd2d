"""lambdanets benchmark: one kind from options to a folder of results."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lambdanets.device import best_device, check_bfloat16, free_memory
from lambdanets.errors import InputError
from lambdanets.evidence.benchmark import layer, model, plots, scaling
from lambdanets.evidence.benchmark.options import KINDS, Common, Shapes, check_contestants, parse_shape
from lambdanets.evidence.benchmark.peers import KNOWN_WRONG, installed
from lambdanets.evidence.benchmark.race import Case, Measuring, plain_float32, race
from lambdanets.evidence.benchmark.report import RESULTS, Report, case_table, figures, figures_table, noise
from lambdanets.folders import WorkFolder
from lambdanets.ops.position.plan import check_algorithm
from lambdanets.progress import Progress
from lambdanets.provenance import hardware
from lambdanets.signals import deferred, interruptible
from lambdanets.terminal import echo

Cases = Callable[[Any, torch.device, Sequence[Any]], list[Case]]

_CASES: dict[str, tuple[Cases, list[str]]] = {
    "layer": (layer.cases, layer.NAMES),
    "model": (model.cases, model.NAMES),
    "memory": (layer.cases, layer.NAMES),
    "scaling": (scaling.cases, scaling.NAMES),
}


def run(kind: str, options: Common) -> Path:
    """Check, measure and write; returns the folder, which has results.json and plots.

    Interrupted, it writes what was measured so far and raises KeyboardInterrupt; with the same options and folder it
    resumes after the last finished case. Raises InputError for options that do not fit, before the folder is made.
    """
    assert isinstance(options, KINDS[kind])
    make_cases, names = _CASES[kind]
    device = _check(options, names)
    folder = options.out or Path(f"benchmark-{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    place = WorkFolder(folder, read_identity=lambda folder: {} if (folder / RESULTS).is_file() else None)
    report = Report(kind, options, device.type, time.strftime("%Y-%m-%d %H:%M:%S%z"))
    with place.open(), plain_float32(options.threads):
        if place.is_started():
            report.resume(folder)
            echo(f"resuming: {len({str(row.sizes) for row in report.rows})} cases are done", file=sys.stderr)
        echo(*_heading(device, options))
        try:
            with interruptible():
                _race_all(make_cases(options, device, report.rows), report, device, folder)
            report.finished = True
        finally:
            with deferred():  # a finished benchmark has its plots
                _conclude(report, folder)
    if all(row.left_out for row in report.rows):
        raise InputError(f"nothing was measured: {report.rows[0].left_out}; {folder / RESULTS} has every reason")
    return folder


def _conclude(report: Report, folder: Path) -> None:
    """Write what was measured, and say where it is."""
    report.write(folder)
    plots.draw(report, folder)
    echo(*figures_table(figures(report.kind, report.rows)).split("\n"))
    if said := noise(report.rows):
        echo("", said)
    if report.finished:
        echo("", f"written to {folder}")
    else:
        kept = f"interrupted; what was measured is written to {folder}"
        echo("", f"{kept}; resume with the same command and --out {folder}")


def _race_all(cases: list[Case], report: Report, device: torch.device, folder: Path) -> None:
    done = [row.sizes for row in report.rows]
    cases = [case for case in cases if case.sizes not in done]
    with Progress(f"benchmark {report.kind}", len(cases), "cases") as progress:
        while cases:
            case = cases.pop(0)  # what a case keeps for its contestants is freed with it
            progress.set_note("", label=str(case))
            rows = race(case, report.rows, _measuring(report.kind, report.options, device, progress.set_note))
            progress.update()
            echo(*case_table(report.kind, rows, getattr(report.options, "batch_size", 1)).split("\n"))
            report.write(folder)


def _check(options: Common, names: list[str]) -> torch.device:
    """The device to run on. Raises InputError for options that do not fit."""
    check_contestants(options, names)
    algorithm = getattr(options, "algorithm", "auto")
    try:
        check_algorithm(algorithm)
    except ValueError as error:
        raise InputError(f"--{error}") from error
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a GPU that PyTorch can use, and there is none")
    device = best_device() if options.device is None else torch.device(options.device)
    _check_memory(options, device)
    if device.type == "cpu" and options.dtype == "bfloat16":
        check_bfloat16("--dtype bfloat16", "--dtype float32")
    return device


def _check_memory(options: Common, device: torch.device) -> None:
    """Raise InputError for maps of which not even a layer's input and output fit into memory."""
    if not isinstance(options, Shapes):
        return
    free = free_memory(device)
    for shape in options.shapes:
        height, width, channels = parse_shape(shape)
        needed = 2 * options.batch_size * height * width * channels * getattr(torch, options.dtype).itemsize
        if needed > free:
            raise InputError(
                f"--shapes must fit into memory, got {shape}: input and output of a batch of {options.batch_size} take "
                f"{needed / 2**30:,.0f} GiB, and {free / 2**30:.1f} GiB are free"
            )


def _measuring(kind: str, options: Common, device: torch.device, tell: Callable[[str], Any]) -> Measuring:
    return Measuring(
        device,
        time=kind != "memory",
        memory=kind in ("memory", "scaling"),
        repeats=getattr(options, "repeats", 1),
        seconds=getattr(options, "seconds", 0.0),
        seed=options.seed,
        tell=tell,
    )


def _heading(device: torch.device, options: Common) -> list[str]:
    machine = hardware()
    threads = options.threads or machine["threads"]
    where = (
        machine["gpu"] if device.type == "cuda" else f"{machine['processor']}, {threads} of {machine['cores']} cores"
    )
    lines = [f"{options.dtype} on {where}, PyTorch {torch.__version__}"]
    lines += [f"left out: {name} ({reason})" for name, reason in KNOWN_WRONG.items() if installed(name)]
    return lines
