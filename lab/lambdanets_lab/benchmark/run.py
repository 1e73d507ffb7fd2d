"""Run one kind of benchmark and write its results."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from lambdanets.device import best_device
from lambdanets.errors import InputError, nearest_hint
from lambdanets.ops.position.choose import check_algorithm
from lambdanets.progress import Progress
from lambdanets.provenance import hardware, provenance
from lambdanets.records import read_json, write_json
from lambdanets.signals import resumable
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder
from lambdanets_lab import plot_style
from lambdanets_lab.benchmark import layer, model, report, scaling
from lambdanets_lab.benchmark.measurement import Case, Row, measure_case
from lambdanets_lab.benchmark.options import OPTIONS, CommonOptions
from lambdanets_lab.benchmark.report import case_table, read_rows, row_to_json
from lambdanets_lab.results import installed_version

RESULTS = "results.json"
BASELINE_PACKAGES = ("lambda-networks", "pylocron")


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
    "layer": Kind(layer.make_cases, layer.NAMES, report.draw_layer_times),
    "model": Kind(model.make_cases, model.NAMES, images_per_second=True),
    "scaling": Kind(scaling.make_cases, scaling.NAMES, report.draw_scaling),
    # `lambdanets tables --measured` shows the results and draws their figures
    "tables": Kind(model.make_table_cases, model.TABLE_ROWS, images_per_second=True),
}


def run(kind: str, options: CommonOptions) -> None:
    """Check the options, measure all cases, write results.json after each, and a plot at the end.

    After an interruption, another call with the same options and folder resumes after the last finished case. Raises
    InputError for invalid options before creating the folder.
    """
    assert isinstance(options, OPTIONS[kind])
    make_cases, draw = KINDS[kind].make_cases, KINDS[kind].draw
    device = _check(options, KINDS[kind].candidates)
    if not make_cases(options, device, ()):
        raise InputError("--tables must have a row that --candidates and --passes name, got none")
    torch.set_num_threads(options.threads or torch.get_num_threads())  # before they are written as hardware
    folder = options.out or Path(f"benchmark-{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    settings = _settings(kind, options, device)
    content: dict[str, Any] = {"started": time.strftime("%Y-%m-%d %H:%M:%S%z"), "finished": False, **settings}
    rows: list[Row] = []
    work = WorkFolder(folder, settings, _read)
    torch.set_float32_matmul_precision("highest")  # without TF32
    torch.backends.cudnn.allow_tf32 = False
    with resumable(f"finished cases are in {folder}, to name with --out"), work.open():
        if work.is_started():
            content = read_json(folder / RESULTS, dict[str, Any])
            rows = read_rows(content)
        done = [row.sizes for row in rows]
        cases = [case for case in make_cases(options, device, rows) if case.sizes not in done]
        echo(_heading(device, options))
        with Progress(f"benchmark {kind}", len(cases), "cases") as progress:
            while cases:
                case = cases.pop(0)  # releases the inputs of each case after measuring it
                progress.note("", str(case))
                measured = measure_case(
                    case,
                    device,
                    repeats=options.repeats,
                    seconds=options.seconds,
                    seed=options.seed,
                    on_progress=progress.note,
                )
                rows += measured
                write_json(folder / RESULTS, content | {"rows": [row_to_json(row) for row in rows]})
                progress.update()
                batch_size = options.batch_size if KINDS[kind].images_per_second else None
                echo(*case_table(measured, case.baseline, batch_size).split("\n"))
        if (figure := draw(rows)) is not None:
            plot_style.save(figure, folder / f"{kind}.png")
        # last, because a finished benchmark is not started again
        write_json(folder / RESULTS, content | {"finished": True, "rows": [row_to_json(row) for row in rows]})
    echo("", f"written to {folder}")
    if all(row.skip_reason for row in rows):
        raise InputError(f"nothing was measured: {rows[0].skip_reason}; {folder / RESULTS} has the reasons")


def _settings(kind: str, options: CommonOptions, device: torch.device) -> dict[str, Any]:
    """Settings that must be equal to resume a benchmark, as in JSON."""
    fields = dataclasses.asdict(dataclasses.replace(options, out=None))  # without local paths
    versions = {name: installed_version(name) for name in BASELINE_PACKAGES}
    settings = {"kind": kind, "device": device.type, "options": fields} | provenance(**versions)
    content: dict[str, Any] = json.loads(json.dumps(settings))
    return content


def _read(folder: Path) -> dict[str, Any] | None:
    """Read the results in a folder; None without any. Raises InputError if they are finished."""
    path, advice = folder / RESULTS, "choose another folder with --out, or remove it"
    if not path.is_file():
        return None
    content = read_json(path, dict[str, Any], advice)
    if content.get("finished"):
        raise InputError(f"{path} exists and is finished; {advice}")
    return content


def _check(options: CommonOptions, names: Sequence[str]) -> torch.device:
    """Return the device to measure on. Raises InputError for invalid options."""
    for name in options.candidates or ():
        if name not in names:
            raise InputError(f"--candidates must be among {', '.join(names)}, got {name!r}{nearest_hint(name, names)}")
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
    cpu = f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores"
    return f"{options.dtype} on {machine['gpu'] if device.type == 'cuda' else cpu}, PyTorch {torch.__version__}"
