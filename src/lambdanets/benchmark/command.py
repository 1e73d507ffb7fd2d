"""lambdanets benchmark: one kind from options to a folder of results."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lambdanets.benchmark import layer, model, plots, scaling
from lambdanets.benchmark.options import KINDS, Common, check_contestants, check_options
from lambdanets.benchmark.peers import KNOWN_WRONG, installed
from lambdanets.benchmark.race import Case, Measuring, plain_float32, race
from lambdanets.benchmark.report import Report, case_table, figures, figures_table
from lambdanets.device import best_device, check_bfloat16
from lambdanets.errors import InputError
from lambdanets.ops.position.plan import check_algorithm
from lambdanets.provenance import hardware

Cases = Callable[[Any, torch.device, Sequence[Any]], list[Case]]

_CASES: dict[str, tuple[Cases, list[str]]] = {
    "layer": (layer.cases, layer.NAMES),
    "model": (model.cases, model.NAMES),
    "memory": (layer.cases, layer.NAMES),
    "scaling": (scaling.cases, scaling.NAMES),
}


def run(kind: str, options: Common) -> Path:
    """Check, measure and write; returns the folder, which has results.json and plots.

    Interrupted, it writes what was measured so far and raises KeyboardInterrupt. Raises InputError for options that do
    not fit, before the folder is made.
    """
    assert isinstance(options, KINDS[kind])
    make_cases, names = _CASES[kind]
    device = _check(options, names)
    folder = options.out or Path(f"benchmark-{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    if folder.exists():
        raise InputError(f"{folder} exists; name another folder with --out, or remove it")
    folder.mkdir(parents=True)
    report = Report(kind, options, device.type, time.strftime("%Y-%m-%d %H:%M:%S%z"))
    with plain_float32(options.threads):
        for line in _heading(device, options):
            print(line)
        try:
            _race_all(make_cases(options, device, report.rows), report, device)
            report.finished = True
        finally:
            report.write(folder)
            plots.draw(report, folder)
            print(figures_table(figures(kind, report.rows)))
            print(f"\n{'written' if report.finished else 'interrupted; what was measured is written'} to {folder}")
    return folder


def _race_all(cases: list[Case], report: Report, device: torch.device) -> None:
    with tqdm(total=len(cases), unit="case", disable=None, leave=False, file=sys.stderr) as bar:
        while cases:
            case = cases.pop(0)  # what a case keeps for its contestants is freed with it
            bar.set_description(str(case))
            rows = race(case, report.rows, _measuring(report.kind, report.options, device, bar.set_postfix_str))
            bar.update()
            with tqdm.external_write_mode(file=sys.stdout):
                print(case_table(report.kind, rows, getattr(report.options, "batch_size", 1)), flush=True)


def _check(options: Common, names: list[str]) -> torch.device:
    """The device to run on. Raises InputError for options that do not fit."""
    check_options(options)
    check_contestants(options, names)
    algorithm = getattr(options, "algorithm", "auto")
    try:
        check_algorithm(algorithm)
    except ValueError as error:
        raise InputError(f"--{error}") from error
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a GPU that PyTorch can use, and there is none")
    device = best_device() if options.device is None else torch.device(options.device)
    if device.type == "cpu" and options.dtype == "bfloat16":
        check_bfloat16("--dtype bfloat16", "--dtype float32")
    return device


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
