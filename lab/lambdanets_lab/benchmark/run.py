"""Run one kind of benchmark and write its results."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from lambdanets.device import best_device, hardware
from lambdanets.errors import InputError
from lambdanets.ops.position.choose import check_algorithm
from lambdanets.progress import Progress
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder
from lambdanets_lab import plot_style
from lambdanets_lab.benchmark import layer, model, plots, scaling
from lambdanets_lab.benchmark.measurement import Case, Row, measure_case
from lambdanets_lab.benchmark.options import OPTIONS, CommonOptions, check_candidates
from lambdanets_lab.benchmark.report import RESULTS, Report, case_table, read_settings


@dataclass(frozen=True)
class Kind:
    """A kind of benchmark.

    make_cases: makes the cases from options, device and the rows measured so far. candidates: names that
    --candidates accepts. draw: plots all rows, or returns None if there is nothing to plot.
    """

    make_cases: Callable[[Any, torch.device, Sequence[Row]], list[Case]]
    candidates: Sequence[str]
    draw: Callable[[Sequence[Row]], Figure | None] = lambda rows: None
    images_per_second: bool = False


KINDS = {
    "layer": Kind(layer.make_cases, layer.NAMES, plots.draw_layer_times),
    "model": Kind(model.make_cases, model.NAMES, images_per_second=True),
    "scaling": Kind(scaling.make_cases, scaling.NAMES, plots.draw_scaling),
    # `lambdanets tables --measured` shows the results and draws their figures
    "tables": Kind(model.make_table_cases, model.TABLE_ROWS, images_per_second=True),
}


def run(kind: str, options: CommonOptions) -> Path:
    """Check the options, measure all cases, and return the folder with results.json and plots.

    An interrupted benchmark writes its results so far and raises KeyboardInterrupt; another call with the same options
    and folder resumes after the last finished case. Raises InputError for invalid options before creating the folder.
    """
    assert isinstance(options, OPTIONS[kind])
    device = _check(options, KINDS[kind].candidates)
    if not KINDS[kind].make_cases(options, device, ()):
        raise InputError("--tables must have a row that --candidates and --passes name, got none")
    folder = options.out or Path(f"benchmark-{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    report = Report(kind, options, device.type, time.strftime("%Y-%m-%d %H:%M:%S%z"))
    advice = "remove it, or choose another folder with --out"
    settings = report.settings()
    work_folder = WorkFolder(folder, "a benchmark", settings | settings["options"], read_settings, advice)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    torch.set_float32_matmul_precision("highest")  # without TF32
    torch.backends.cudnn.allow_tf32 = False
    with work_folder.open():
        if work_folder.is_started():
            report.resume(folder)
            echo(f"resuming: {len({str(row.sizes) for row in report.rows})} cases are done", file=sys.stderr)
        echo(_heading(device, options))
        try:
            _measure_all(KINDS[kind].make_cases(options, device, report.rows), report, device, folder)
            report.finished = True
        finally:
            _write_results(report, folder)
    if all(row.skip_reason for row in report.rows):
        raise InputError(f"nothing was measured: {report.rows[0].skip_reason}; {folder / RESULTS} has the reasons")
    return folder


def _write_results(report: Report, folder: Path) -> None:
    """Write results and the plot."""
    if (figure := KINDS[report.kind].draw(report.rows)) is not None:
        plot_style.save(figure, folder / f"{report.kind}.png")
    report.write(folder)  # last, because a finished benchmark is not started again
    if report.finished:
        echo("", f"written to {folder}")
    else:
        echo("", f"interrupted; results so far are in {folder}; resume with the same command and --out {folder}")


def _measure_all(cases: list[Case], report: Report, device: torch.device, folder: Path) -> None:
    kind = KINDS[report.kind]
    done = [row.sizes for row in report.rows]
    cases = [case for case in cases if case.sizes not in done]
    with Progress(f"benchmark {report.kind}", len(cases), "cases") as progress:
        while cases:
            case = cases.pop(0)  # releases the inputs of each case after measuring it
            progress.note("", str(case))
            options = report.options
            rows = measure_case(
                case,
                report.rows,
                device,
                repeats=options.repeats,
                seconds=options.seconds,
                seed=options.seed,
                on_progress=progress.note,
            )
            progress.update()
            echo(*case_table(rows, case.baseline, options.batch_size if kind.images_per_second else None).split("\n"))
            report.write(folder)


def _check(options: CommonOptions, names: Sequence[str]) -> torch.device:
    """Return the device to measure on. Raises InputError for invalid options."""
    check_candidates(options, names)
    algorithm = getattr(options, "algorithm", "auto")
    try:
        check_algorithm(algorithm)
    except ValueError as error:
        raise InputError(f"--{error}") from error
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device must be cpu without a GPU that PyTorch can use, got cuda")
    return best_device() if options.device is None else torch.device(options.device)


def _heading(device: torch.device, options: CommonOptions) -> str:
    machine = hardware()
    threads = options.threads or machine["threads"]
    cpu = f"{machine['processor']}, {threads} of {machine['cores']} cores"
    return f"{options.dtype} on {machine['gpu'] if device.type == 'cuda' else cpu}, PyTorch {torch.__version__}"
