"""Throughput, latency and peak memory of the models behind the tables, measured here; saved and read back."""

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
from tqdm import tqdm

from lambdanets.benchmark.allocations import peak_bytes
from lambdanets.benchmark.race import plain_float32
from lambdanets.benchmark.timing import interleave, summarize
from lambdanets.device import best_device
from lambdanets.errors import InputError
from lambdanets.files import printable_bytes, write_whole
from lambdanets.provenance import commit, hardware, versions
from lambdanets.reproduction.counting import count_flops
from lambdanets.reproduction.printed import figures_of
from lambdanets.reproduction.rows import ROWS, Build

# Passes of each measured table; the first row of a table is what its others are divided by.
TABLES = {
    "4": ("inference",),
    "5": ("training", "inference"),
    "10": ("inference",),
    "12": ("inference",),
    "13": ("inference",),
    "18": ("training",),
}
LATENCY = "train step latency"
_FORWARD_AND_BACKWARD = 3  # times the operations of a forward pass
_WARM_UP = 2


@dataclass(frozen=True)
class Plan:
    """What is measured, and how often: images a batch, the side of all images in place of each row's own."""

    tables: tuple[str, ...]
    batch_size: int
    repeats: int
    image_size: int | None = None
    seconds: float = 60.0


@dataclass
class Sample:
    """Seconds a batch and peak bytes of a row in a pass; why it was left out, where it was."""

    table: str
    row: str
    work: str
    batch_size: int
    image_size: int
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    left_out: str | None = None


def measure(plan: Plan, out: Path) -> None:
    """Measure tables one after another, the rows of each in rounds, and write JSON to out.

    Interrupted, it writes what was measured so far and raises KeyboardInterrupt. Raises InputError where out exists or
    a table has nothing to measure.
    """
    unknown = [name for name in plan.tables if name not in TABLES]
    if unknown:
        raise InputError(f"table {unknown[0]} has no speeds to measure, only {', '.join(TABLES)} have")
    if out.exists():
        raise InputError(f"{out} exists; name another file, or remove it")
    device = best_device()
    samples: list[Sample] = []
    started, finished = time.strftime("%Y-%m-%d %H:%M:%S%z"), False
    with plain_float32(None):
        _tell(f"about {estimate(plan, device) / 60:.1f} minutes on {machine(hardware())}")
        try:
            for name in plan.tables:
                _measure_table(name, plan, device, samples)
            finished = True
        finally:
            content = {
                "kind": "tables",
                "started": started,
                "finished": finished,
                "device": device.type,
                "options": dataclasses.asdict(plan),
                "rows": [dataclasses.asdict(sample) for sample in samples],
                "commit": commit(),
                "versions": versions(),
                "hardware": hardware(),
            }
            write_whole(out, printable_bytes(json.dumps(content, indent=1, default=str) + "\n"))
            _tell(f"{'written' if finished else 'interrupted; what was measured is written'} to {out}")


def _tell(said: str) -> None:
    """Beside the tables, which standard output is for."""
    print(said, file=sys.stderr, flush=True)


def estimate(plan: Plan, device: torch.device) -> float:
    """Seconds that measuring will take: each pass's operations, at the rate at which plain ResNet-50 runs now."""
    yardstick = Build("resnet50", image_size=plan.image_size or 224)
    work = _work(yardstick.create(str(device)), plan.batch_size, yardstick.image_size, False, device)
    work()
    start = time.perf_counter()
    work()
    rate = _operations(yardstick, plan, training=False) / (time.perf_counter() - start)
    total = sum(
        _operations(build, plan, training=training) * (plan.repeats + _WARM_UP + 1)
        for _, build, training in _passes(plan)
    )
    return total / rate


def read(path: Path) -> tuple[dict[tuple[str, str, str], tuple[float, str]], str]:
    """What a file of `measure` says: values by (table, row, printed column) with a note each, and the machine.

    Throughputs are images a second; latency is scaled to the paper's 1,024 images. Raises InputError where the file
    is none of `measure`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        samples = [Sample(**row) for row in content["rows"]]
        where = f"{machine(content['hardware'])}, PyTorch {content['versions']['torch']}, float32"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no file that lambdanets tables --measure wrote") from error
    values: dict[tuple[str, str, str], tuple[float, str]] = {}
    base: dict[str, tuple[str, float]] = {}  # of each pass of a table the first row
    for sample in samples:
        if not sample.seconds:
            continue
        seconds = summarize(sample.seconds).median / sample.batch_size
        column = _column(sample)
        first, of_first = base.setdefault(f"{sample.table} {column}", (sample.row, seconds))
        note = f"{of_first / seconds:.2f} x {first}"
        theirs = _ratio_printed(sample.table, sample.row, first, column)
        note += f", the paper's {theirs:.2f} x" if theirs is not None else ""
        note += f"; batch {sample.batch_size}, {sample.image_size} px"
        if sample.peak_bytes is not None:
            note += f", peak {sample.peak_bytes / 2**30:.2f} GiB"
        values[sample.table, sample.row, column] = (seconds * 1024 if column == LATENCY else 1 / seconds, note)
        if sample.table == "5":
            values["5", sample.row, f"{column} slowdown vs LambdaResNet-152"] = (seconds / of_first, "")
    return values, where


def _ratio_printed(table: str, row: str, first: str, column: str) -> float | None:
    """How many times as fast as another row the paper says that a row is; None where it does not."""
    found = {f.row: f.value for f in figures_of([table]) if f.column == column and not isinstance(f.value, str)}
    if row not in found or first not in found:
        return None
    ratio = float(found[row]) / float(found[first])
    return 1 / ratio if column == LATENCY else ratio


def machine(found: dict[str, Any]) -> str:
    """A machine in words, from what `provenance.hardware` says."""
    return found["gpu"] or f"{found['processor']}, {found['threads']} of {found['cores']} cores"


def _column(sample: Sample) -> str:
    if sample.table == "18":
        return LATENCY
    if sample.table == "5":
        return "train throughput" if sample.work == "training" else "inference throughput"
    return "throughput"


def _passes(plan: Plan) -> Iterator[tuple[Sample, Build, bool]]:
    for name in plan.tables:
        for work in TABLES[name]:
            for row, build in ROWS[name].items():
                sample = Sample(name, row, work, plan.batch_size, plan.image_size or build.image_size)
                yield sample, build, work == "training"


def _operations(build: Build, plan: Plan, *, training: bool) -> float:
    times = _FORWARD_AND_BACKWARD if training else 1
    return times * plan.batch_size * count_flops(_fitting(build, plan).create(), plan.image_size or build.image_size)


def _fitting(build: Build, plan: Plan) -> Build:
    """The model for the images that are measured: a vision transformer's size is fixed when it is built."""
    if plan.image_size is None or not build.name.startswith("vit_"):
        return build
    return dataclasses.replace(build, overrides=build.overrides | {"img_size": plan.image_size})


def _measure_table(name: str, plan: Plan, device: torch.device, samples: list[Sample]) -> None:
    for work in TABLES[name]:
        passes = [entry for entry in _passes(dataclasses.replace(plan, tables=(name,))) if entry[0].work == work]
        mine = {sample.row: sample for sample, _, _ in passes}
        samples += mine.values()
        models: dict[str, nn.Module] = {}
        runs: dict[str, Callable[[], Any]] = {}
        with tqdm(total=len(passes), unit="row", desc=f"table {name}, {work}", file=sys.stderr, disable=None) as bar:
            for sample, build, training in passes:
                bar.set_postfix_str(f"{sample.row}, building and memory")
                key = str(_fitting(build, plan))
                try:
                    if key not in models:
                        models[key] = _fitting(build, plan).create(str(device))
                    run = _work(models[key], plan.batch_size, sample.image_size, training, device)
                    sample.peak_bytes = peak_bytes(run, device)
                except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                    if "memory" not in str(error).lower():
                        raise
                    sample.left_out = "out of memory"
                    continue
                finally:
                    bar.update()
                runs[sample.row] = run
            synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
            interleave(
                runs,
                {row: sample.seconds for row, sample in mine.items()},
                repeats=plan.repeats,
                seconds=plan.seconds,
                synchronize=synchronize,
                tell=bar.set_postfix_str,
            )


def _work(model: nn.Module, batch_size: int, side: int, training: bool, device: torch.device) -> Callable[[], Any]:
    """A forward pass in evaluation mode, or forward and backward in training mode; gradients are released after it."""
    images = torch.randn(batch_size, 3, side, side, device=device)

    def work() -> None:
        model.train(training)
        with torch.set_grad_enabled(training):
            output = model(images)
        if training:
            output.sum().backward()
            model.zero_grad(set_to_none=True)

    return work
