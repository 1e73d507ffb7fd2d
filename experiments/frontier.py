"""Accuracy against speed (Figure 4 of the paper): LambdaResNets, ResNet-RS, EfficientNets and DeiT on this machine.

    python experiments/frontier.py WORK --out FILE [--names NAME ...]    time networks, 30 minutes after the exports
    python experiments/frontier.py [--out FILE] [--page PAGE]            write the table and the figure from results

Accuracies are published ones, of networks trained on ImageNet without extra data: LambdaResNets from Table 18 of the
paper, the others from results/published_top1.json. Times and peak memory are measured here with random weights in
float32, networks of similar accuracy in turn in one process that keeps freed memory, as the `lambdanets` command does.
The files of OpenVINO are kept in WORK. Results are written after each phase, and finished phases are skipped. The page
has the committed results of all machines, or those of FILE; the figure, in the page's folder results, those of the
first.
"""

import functools
import gc
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from pages import MACHINES, RESULTS, Script, replace_section
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from lambdanets import create_model, export
from lambdanets.allocator import keep_freed_memory
from lambdanets_lab import plot_style
from lambdanets_lab.benchmark.measurement import peak_bytes
from lambdanets_lab.export.graphs import fill_zero_norm_weights
from lambdanets_lab.export.runtimes import RUNTIMES
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.paper_models import PAPER_MODELS
from lambdanets_lab.results import read_results, write_results
from lambdanets_lab.tables.paper import select_numbers
from lambdanets_lab.timing import time_in_turn

LOWEST_TOP1 = 76.5  # of the figure
GROUP = 5  # networks in memory: with nine, the largest is slowed down by lack of memory
BATCH_SIZE = {"inference": 4, "openvino": 4, "training": 2}
PHASES = {"inference": "inference, PyTorch", "openvino": "inference, OpenVINO", "training": "training step, PyTorch"}
OURS = "LambdaResNet"
PUBLISHED = read_results(RESULTS / "published_top1.json")  # by family
PAPER_SPEEDUPS = {"EfficientNet": (3.2, 4.4), "ResNet-RS": (1.6, 2.3)}  # of LambdaResNets in Figure 4, on TPUv3


class Row(NamedTuple):
    """A point of the figure. top1: published, in percent."""

    family: str
    model: str
    image_size: int
    top1: float

    @property
    def name(self) -> str:
        return f"{self.model} {self.image_size}"


def all_rows() -> list[Row]:
    top1 = {number.row: float(number.value) for number in select_numbers(["18"]) if number.column == "supervised top-1"}
    rows = [Row(OURS, spec.name, spec.image_size, top1[row]) for row, spec in PAPER_MODELS["18"].items() if row in top1]
    return rows + [Row(family, **network) for family, each in PUBLISHED.items() for network in each["networks"]]


@functools.cache
def make_network(model: str, image_size: int) -> nn.Module:
    """Create a network with random weights whose outputs depend on all layers, in evaluation mode."""
    torch.manual_seed(0)
    network = create_model(model)
    fill_zero_norm_weights(network)
    update_bn([torch.randn(4, 3, image_size, image_size)], network)  # else activations overflow
    return network.eval()


def export_once(row: Row, work: Path) -> Path:
    """Export a network to OpenVINO with fixed shapes, unless it has a file."""
    path = work / f"{row.name}.xml"
    if not path.exists():
        network = make_network(row.model, row.image_size)
        export(network, path, to="openvino", image_size=row.image_size, batch_size=BATCH_SIZE["openvino"])
        make_network.cache_clear()
    return path


def measure(rows: list[Row], work: Path, out: Path, *, repeats: int, seconds: float) -> None:
    """Time the phases that are not in the results file yet."""
    phases = read_results(out)["phases"] if out.exists() else {}
    for phase in PHASES:
        if phase in phases:
            print(f"{phase}: {out} has it already; use another --out to measure it again", flush=True)
        else:
            phases[phase] = measure_phase(phase, rows, work, repeats=repeats, seconds=seconds)
            write_results(out, {"phases": phases, "batch_size": BATCH_SIZE})


def measure_phase(phase: str, rows: list[Row], work: Path, **options: Any) -> list[dict[str, Any]]:
    """Return, for each row, quartiles of the seconds per batch, peak memory and number of parameters.

    Networks of similar accuracy are in memory together and timed in turn.
    """
    by_accuracy = sorted(rows, key=lambda row: row.top1)
    results = [
        result
        for first in range(0, len(rows), GROUP)
        for result in measure_group(phase, by_accuracy[first : first + GROUP], work, **options)
    ]
    families = [OURS, *PUBLISHED]
    return sorted(results, key=lambda result: families.index(result["family"]))


def measure_group(phase: str, rows: list[Row], work: Path, *, repeats: int, seconds: float) -> list[dict[str, Any]]:
    runs: dict[str, Callable[[], Any]] = {}
    results = {row.name: {**row._asdict(), "peak_bytes": None} for row in rows}
    for row in rows:
        images = torch.randn(BATCH_SIZE[phase], 3, row.image_size, row.image_size)
        if phase == "openvino":
            runs[row.name] = functools.partial(RUNTIMES["openvino"].open(export_once(row, work)), images)
            continue
        # networks of fixed image size differ by size; the others are shared by the rows of all sizes
        network = make_network(row.model, 224 if row.family != "DeiT" else row.image_size)
        network.to(memory_format=torch.channels_last).train(phase == "training")
        images = images.contiguous(memory_format=torch.channels_last)
        run = train_step if phase == "training" else infer
        runs[row.name] = functools.partial(run, network, images)
        runs[row.name]()
        results[row.name]["peak_bytes"] = peak_bytes(runs[row.name], torch.device("cpu"))
        results[row.name]["parameters"] = sum(parameter.numel() for parameter in network.parameters())
        print(phase, results[row.name], flush=True)
    for name, times in time_in_turn(runs, repeats=repeats, seconds=seconds).items():
        results[name]["seconds"] = times
    del runs
    make_network.cache_clear()
    gc.collect()
    return list(results.values())


@torch.inference_mode()
def infer(network: nn.Module, images: Tensor) -> None:
    network(images)


def train_step(network: nn.Module, images: Tensor) -> None:
    """Forward and backward pass; frees the gradients."""
    network(images).sum().backward()
    network.zero_grad(set_to_none=True)


def read_machines() -> list[dict[str, Any]]:
    """The committed results of all machines."""
    return [read_results(machine / "frontier.json") for machine in MACHINES]


def frontier(results: dict[str, Any], phase: str, family: str) -> list[tuple[float, float]]:
    """Return (top-1, images per second) of a family, by increasing accuracy."""
    batch = results["batch_size"][phase]
    rows = [row for row in results["phases"][phase] if row["family"] == family]
    return sorted((row["top1"], batch / row["seconds"]["median"]) for row in rows)


def speedups(ours: list[tuple[float, float]], baseline: list[tuple[float, float]]) -> dict[float, float]:
    """Return the ratio of speeds by top-1 of ours, where the baseline's accuracies enclose it.

    The baseline's speed at the same accuracy is interpolated between its neighbors, linearly in the logarithm.
    """
    ratios = {}
    for top1, speed in ours:
        for (low, faster), (high, slower) in itertools.pairwise(baseline):
            if low <= top1 <= high and high > low:
                position = (top1 - low) / (high - low)
                interpolated = math.exp((1 - position) * math.log(faster) + position * math.log(slower))
                ratios[top1] = speed / interpolated
                break
    return ratios


def ratios_to(family: str, results: dict[str, Any], phase: str) -> list[float]:
    """Return the speeds of LambdaResNets relative to a family at the same accuracies."""
    return list(speedups(frontier(results, phase, OURS), frontier(results, phase, family)).values())


def write_section(machines: Sequence[dict[str, Any]]) -> str:
    """The text between the page's markers, from the results of each machine."""
    rows = []
    for family in (*PAPER_SPEEDUPS, "DeiT"):
        paper = "{} to {}".format(*PAPER_SPEEDUPS[family]) if family in PAPER_SPEEDUPS else ""
        for results in machines:
            cells = []
            for phase in PHASES:
                ratios = ratios_to(family, results, phase)
                low, high = min(ratios), max(ratios)
                cells.append(f"{low:.2f} to {high:.2f} (median {statistics.median(ratios):.2f})")
            rows.append([family, paper, results["hardware"]["processor"], *cells])
    header = ["speed of LambdaResNets / speed of", "paper, training on TPUv3", "processor", *PHASES.values()]
    sections = [markdown_table(header, *rows)]
    for results in machines:
        machine = f"{results['hardware']['processor']}, {results['hardware']['threads']} threads, float32"
        table = speed_table(results)
        sections.append(f"<details><summary>All networks, on {machine}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(sections) + "\n"


def speed_table(results: dict[str, Any]) -> str:
    """The speed, size and training memory of each network on a machine."""
    table = []
    times = {phase: {f"{r['model']} {r['image_size']}": r for r in results["phases"][phase]} for phase in PHASES}
    for name, row in times["inference"].items():
        speeds = [f"{results['batch_size'][phase] / times[phase][name]['seconds']['median']:.3g}" for phase in PHASES]
        memory = times["training"][name]["peak_bytes"] / results["batch_size"]["training"] / 2**20
        parameters = f"{row['parameters'] / 1e6:.1f}"
        size = str(row["image_size"])
        table.append([row["model"], size, f"{row['top1']:.1f}", parameters, *speeds, f"{memory:.0f}"])
    header = ["model", "image size", "top-1 (%), published", "parameters (M)"]
    header += [f"{title} (images/s)" for title in PHASES.values()]
    header.append("memory of a training step with 2 images, with gradients of the weights / 2 (MiB)")
    return markdown_table(header, *table)


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw top-1 against images per second, one panel per phase."""
    figure, axes = plot_style.subplots(len(PHASES), height=3.7)
    machine = f"{results['hardware']['processor']}, {results['hardware']['threads']} threads"
    styles = [(plot_style.OURS, "o"), *plot_style.BASELINES]
    for axis, (phase, title) in zip(axes, PHASES.items(), strict=True):
        for (color, marker), family in zip(styles, [OURS, *PUBLISHED], strict=False):
            points = frontier(results, phase, family)
            below = [f"{top1:.1f}% is below the panel" for top1, _ in points if top1 < LOWEST_TOP1]
            label = f"{family} ({', '.join(below)})" if below else family
            axis.plot([p[1] for p in points], [p[0] for p in points], marker=marker, color=color, label=label)
        axis.set(xscale="log", ylabel="ImageNet top-1, published (%)", ylim=(LOWEST_TOP1, 85.5))
        axis.set(title=f"{title}, batch {results['batch_size'][phase]}", xlabel=f"images per second, {machine}")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda speed, _: f"{speed:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(**plot_style.GRID)
    axes[0].legend(fontsize=10, loc="lower left")
    plot_style.save(figure, path)


def main() -> None:
    parser = Script(__doc__, "frontier.md")
    parser.add_argument("work", type=Path, nargs="?", help="folder of the exported networks")
    models = list(dict.fromkeys(row.model for row in all_rows()))
    parser.add_argument("--names", nargs="+", default=models, choices=models, metavar="NAME", help="all by default")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs per network and phase, at most")
    parser.add_argument("--seconds", type=float, default=5, help="time for the runs of each network, roughly")
    options = parser.parse_args()
    if options.work is not None:
        if options.out is None:
            parser.error("--out must name a file for the results")
        keep_freed_memory()  # page faults, which depend on earlier allocations, took up to half the time
        rows = [row for row in all_rows() if row.model in options.names]
        measure(rows, options.work, options.out, repeats=options.repeats, seconds=options.seconds)
        return
    machines = read_machines() if options.out is None else [read_results(options.out)]
    replace_section(options.page, "frontier", write_section(machines))
    draw(machines[0], options.page.parent / "results/frontier.png")


if __name__ == "__main__":
    main()
