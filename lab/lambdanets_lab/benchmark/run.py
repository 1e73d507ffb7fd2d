"""Run one kind of benchmark and write its results."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch

from lambdanets.device import resolve_device
from lambdanets.errors import InputError, check_choice
from lambdanets.progress import Progress
from lambdanets.provenance import provenance
from lambdanets.records import read_json, write_json
from lambdanets.signals import resumable
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder
from lambdanets_lab import plot_style
from lambdanets_lab.benchmark import layer, model, report, scaling
from lambdanets_lab.benchmark.measurement import Row, measure_case
from lambdanets_lab.benchmark.options import CommonOptions
from lambdanets_lab.benchmark.peers import PEERS, installed_version
from lambdanets_lab.benchmark.report import case_table, describe_setup, read_rows, row_to_json

RESULTS = "results.json"

# By kind: what makes the cases from options, device and the rows measured so far, the names that
# --candidates accepts, and what draws all rows; `lambdanets tables` draws those of "tables".
KINDS: dict[str, tuple[Any, list[str], Any]] = {
    "layer": (layer.make_cases, layer.NAMES, report.draw_layer_times),
    "model": (model.make_cases, model.NAMES, None),
    "scaling": (scaling.make_cases, scaling.NAMES, report.draw_scaling),
    "tables": (model.make_table_cases, model.TABLE_ROWS, None),
}


def run(kind: str, options: CommonOptions) -> None:
    """Check the options, measure all cases, write results.json after each, and a plot at the end.

    Another call with the same options and folder measures the cases that results.json lacks. Raises
    InputError for invalid options before creating the folder.
    """
    make_cases, names, draw = KINDS[kind]
    for name in options.candidates or ():
        check_choice("candidates", name, names)
    device = resolve_device(options.device)
    if not make_cases(options, device, ()):
        raise InputError("the options must leave something to measure, got nothing")
    torch.set_num_threads(options.threads or torch.get_num_threads())  # before they are written as hardware
    folder = options.out or Path(f"benchmark-{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    # settings that must be equal to resume, without local paths
    fields = dataclasses.asdict(dataclasses.replace(options, out=None))
    versions = {name: installed_version(name) for name in PEERS}
    settings = {"kind": kind, "device": device.type, "options": fields} | provenance(**versions)
    content: dict[str, Any] = {"started": time.strftime("%Y-%m-%d %H:%M:%S%z"), **settings}
    rows: list[Row] = []
    work = WorkFolder(folder, settings, RESULTS)
    torch.set_float32_matmul_precision("highest")  # without TF32
    torch.backends.cudnn.allow_tf32 = False
    with resumable(f"resume with the same command and --out {folder}", folder / RESULTS), work.open():
        if work.is_started():
            content = read_json(folder / RESULTS, dict[str, Any])
            rows = read_rows(content)
        done = [row.sizes for row in rows]
        cases = [case for case in make_cases(options, device, rows) if case.sizes not in done]
        echo(describe_setup(content))
        with Progress(f"benchmark {kind}", len(cases), "cases") as progress:
            while cases:
                case = cases.pop(0)  # releases the inputs of each case after measuring it
                measured = measure_case(case, device, repeats=options.repeats, seconds=options.seconds)
                rows += measured
                write_json(folder / RESULTS, content | {"rows": [row_to_json(row) for row in rows]})
                progress.update()
                batch_size = options.batch_size if kind in ("model", "tables") else None
                echo(*case_table(measured, case.baseline, batch_size).split("\n"))
        if draw is not None and any(row.median for row in rows):
            plot_style.save(draw(rows), folder / f"{kind}.png")
    echo("", f"written to {folder}")
    if all(row.skip_reason for row in rows):
        raise InputError(f"nothing was measured: {rows[0].skip_reason}; {folder / RESULTS} has the reasons")
