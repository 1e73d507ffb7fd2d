"""Measure throughput, latency and peak memory of the tables' models on this machine."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lambdanets.device import best_device
from lambdanets.errors import InputError, is_out_of_memory, one_line
from lambdanets.evidence.benchmark.measurement import measurement_settings
from lambdanets.evidence.benchmark.peak_memory import peak_bytes
from lambdanets.evidence.benchmark.timing import time_interleaved
from lambdanets.evidence.tables.rows import ROWS, ModelSpec
from lambdanets.files import atomic_write, encode_utf8
from lambdanets.locks import locked
from lambdanets.models.counting import count_flops
from lambdanets.progress import Progress
from lambdanets.provenance import commit, hardware, read_unfinished, versions
from lambdanets.signals import interruptible
from lambdanets.terminal import echo

# Phases measured per table.
TABLES = {
    "4": ("inference", "training"),
    "5": ("training", "inference"),
    "10": ("inference",),
    "12": ("inference",),
    "13": ("inference",),
    "18": ("training",),
}
LATENCY = "train step latency"
_FORWARD_AND_BACKWARD = 3  # cost of forward and backward, relative to forward
_WARMUP_RUNS = 2


@dataclass(frozen=True)
class Plan:
    """Options of `measure`. image_size: size of all rows; if None, each row has that of the paper."""

    tables: tuple[str, ...]
    batch_size: int
    repeats: int
    image_size: int | None = None
    seconds: float = 60.0


@dataclass
class Measurement:
    """Seconds per batch and peak memory of a table row in one phase, inference or training, or why it was skipped."""

    table: str
    row: str
    phase: str
    batch_size: int
    image_size: int
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    skip_reason: str | None = None


def measure(plan: Plan, out: Path) -> None:
    """Measure the tables one after another, each with its rows interleaved; write JSON to out after each phase.

    An interrupted measurement writes the results so far and raises KeyboardInterrupt; another call with the same plan
    and file resumes after the last finished phase. Raises InputError if out has other content or a table has no speeds.
    """
    unknown = [name for name in plan.tables if name not in TABLES]
    if unknown:
        raise InputError(f"tables to measure must be among {', '.join(TABLES)}, got {unknown[0]}")
    device = best_device()
    settings = {
        "kind": "tables",
        "device": device.type,
        "options": dataclasses.asdict(plan),
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }
    with locked(out.with_name(f".{out.name}.lock"), out), measurement_settings(None):
        content: dict[str, Any] = {"started": time.strftime("%Y-%m-%d %H:%M:%S%z"), "phases": [], "rows": []}
        if out.exists():
            content = read_unfinished(out, settings)
            _log(f"resuming: {len(content['phases'])} phases are finished")
        finished: list[list[str]] = content["phases"]  # [table, phase]
        measurements = [Measurement(**row) for row in content["rows"] if [row["table"], row["phase"]] in finished]
        content |= settings | {"finished": False}

        def save() -> None:
            content["rows"] = [dataclasses.asdict(measurement) for measurement in measurements]
            atomic_write(out, encode_utf8(json.dumps(content, indent=1, default=str) + "\n"))

        save()
        table_phases = [[name, phase] for name in plan.tables for phase in TABLES[name]]
        try:
            with interruptible():
                _log(f"about {estimate_seconds(plan, device) / 60:.1f} minutes on {machine(hardware())}")
                for name, phase in table_phases:
                    if [name, phase] not in finished:
                        _measure_phase(name, phase, plan, device, measurements)
                        finished.append([name, phase])
                        save()
        except InputError:  # a row cannot be measured with these options
            if not finished:
                out.unlink()
            raise
        except BaseException:
            save()
            _log(f"interrupted; results so far are in {out}; resume with the same command and --out {out}")
            raise
        content["finished"] = True
        save()
        _log(f"written to {out}")


def _log(message: str) -> None:
    """Print to standard error, since standard output has the tables."""
    echo(message, file=sys.stderr)


def estimate_seconds(plan: Plan, device: torch.device) -> float:
    """Predict the time of all measurements from their FLOPs and the measured FLOP/s of ResNet-50."""
    resnet = ModelSpec("resnet50", image_size=plan.image_size or 224)
    run = _make_run(resnet.create(str(device)).eval(), plan.batch_size, resnet.image_size, False, device)
    run()
    start = time.perf_counter()
    run()
    rate = _estimate_flops(resnet, plan, training=False) / (time.perf_counter() - start)
    total = sum(
        _estimate_flops(spec, plan, training=training) * (plan.repeats + _WARMUP_RUNS + 1)
        for _, spec, training in _planned_rows(plan)
    )
    return total / rate


def machine(properties: dict[str, Any]) -> str:
    """Format a short description of a machine from the result of `provenance.hardware`."""
    return properties["gpu"] or f"{properties['processor']}, {properties['threads']} of {properties['cores']} cores"


def _planned_rows(plan: Plan) -> Iterator[tuple[Measurement, ModelSpec, bool]]:
    for name in plan.tables:
        for phase in TABLES[name]:
            for row, spec in ROWS[name].items():
                measurement = Measurement(name, row, phase, plan.batch_size, plan.image_size or spec.image_size)
                yield measurement, spec, phase == "training"


def _estimate_flops(spec: ModelSpec, plan: Plan, *, training: bool) -> float:
    factor = _FORWARD_AND_BACKWARD if training else 1
    return factor * plan.batch_size * count_flops(_resized(spec, plan).create(), plan.image_size or spec.image_size)


def _resized(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """Return the model for the plan's image size; vision transformers need it as an argument."""
    if plan.image_size is None or not spec.name.startswith("vit_"):
        return spec
    return dataclasses.replace(spec, overrides=spec.overrides | {"img_size": plan.image_size})


def _measure_phase(name: str, phase: str, plan: Plan, device: torch.device, measurements: list[Measurement]) -> None:
    rows = [row for row in _planned_rows(dataclasses.replace(plan, tables=(name,))) if row[0].phase == phase]
    new_measurements = {measurement.row: measurement for measurement, _, _ in rows}
    measurements += new_measurements.values()
    models: dict[str, nn.Module] = {}
    runs: dict[str, Callable[[], Any]] = {}
    with Progress(f"table {name}, {phase}", len(rows), "rows") as progress:
        for measurement, spec, training in rows:
            progress.set_note(f"{measurement.row}, building and memory")
            key = str(_resized(spec, plan))
            try:
                if key not in models:
                    models[key] = _resized(spec, plan).create(str(device)).train(training)
                run = _make_run(models[key], plan.batch_size, measurement.image_size, training, device)
                measurement.peak_bytes = peak_bytes(run, device)
            except (MemoryError, RuntimeError, ValueError, AssertionError) as error:
                if not is_out_of_memory(error):
                    side = measurement.image_size
                    raise InputError(
                        f"{measurement.row} of table {name} failed with {plan.batch_size} images of {side} x {side} in "
                        f"{phase}: {one_line(error)}; choose another --batch-size or --image-size"
                    ) from error
                measurement.skip_reason = "out of memory"
                continue
            finally:
                progress.update()
            runs[measurement.row] = run
        time_interleaved(
            runs,
            {row: measurement.seconds for row, measurement in new_measurements.items()},
            repeats=plan.repeats,
            seconds=plan.seconds,
            synchronize=torch.cuda.synchronize if device.type == "cuda" else lambda: None,
            on_progress=progress.set_note,
        )


def _make_run(model: nn.Module, batch_size: int, side: int, training: bool, device: torch.device) -> Callable[[], Any]:
    """Make a function that runs forward, or forward and backward, and frees the gradients."""
    images = torch.randn(batch_size, 3, side, side, device=device)

    def run() -> None:
        with torch.set_grad_enabled(training):
            output = model(images)
        if training:
            output.sum().backward()
            model.zero_grad(set_to_none=True)

    return run
