"""Pictures: accuracy against time (Figure 4), operations and time against scope (Table 10)."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lambdanets.evidence.tables.printed import Printed, figures_of
from lambdanets.evidence.tables.verdicts import Measurements, compare
from lambdanets.files import atomic_open

_LABEL: dict[str, Any] = {"fontsize": 8, "ha": "left", "va": "top", "rotation_mode": "anchor"}
_OURS, _PAPER, _OTHER = "#1d4ed8", "#111827", "#c2410c"


def draw(folder: Path, measured: Measurements, machine: str = "") -> dict[str, Path]:
    """Write frontier.png and scope.png into a folder, made if it is not there, and return their paths by table.

    Accuracies are the paper's. Times of this machine are drawn where they were measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {"frontier.png": _frontier(measured, machine), "scope.png": _scope(measured, machine)}
    for name, figure in made.items():
        with atomic_open(folder / name) as file:
            figure.savefig(file, format="png", dpi=110)
    return {"18": folder / "frontier.png", "10": folder / "scope.png"}


def _frontier(measured: Measurements, machine: str) -> Figure:
    """Top-1 against the time of a training step: the paper's, and in a panel of its own what was measured here."""
    figures = figures_of(["18"])
    accuracy = {f.row: float(f.value) for f in figures if f.column == "supervised top-1"}
    seconds = {f.row: float(f.value) for f in figures if f.column == "train step latency"}
    ours = {row: measured[key][0] for row in accuracy if (key := ("18", row, "train step latency")) in measured}
    panels = {"8 TPUv3 cores, by the paper": seconds} | ({machine: ours} if ours else {})
    figure = Figure(figsize=(7.5 * len(panels), 5), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, len(panels), squeeze=False).flat)
    for axis, (where, times) in zip(axes, panels.items(), strict=True):
        rows = [row for row in accuracy if row in times]
        axis.plot([times[row] for row in rows], [accuracy[row] for row in rows], "o-", color=_OURS)
        for row in rows:
            depth, size = row.removeprefix("depth ").removesuffix("px").split(", ")
            place = (times[row], accuracy[row])
            axis.annotate(f"({depth}, {size})", place, (4, -4), textcoords="offset points", rotation=-40, **_LABEL)
        axis.set(xscale="log", xlabel="seconds a training step of 1,024 images", title=where)
        axis.set_ylabel("ImageNet top-1, by the paper (%)")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
        axis.margins(0.15)
        axis.grid(alpha=0.3)
    figure.suptitle("LambdaResNets (depth, image size), 350 epochs")
    return figure


def _scope(measured: Measurements, machine: str) -> Figure:
    """FLOPs printed and counted, and images a second where measured, against the scope."""
    figures = figures_of(["10"])
    lines = [line for line in compare(figures) if line.printed.column == "FLOPs"]
    rows = [line.printed.row for line in lines]
    speeds = {row: measured[key][0] for row in rows if (key := ("10", row, "throughput")) in measured}
    figure = Figure(figsize=(7.5 * (2 if speeds else 1), 4.5), layout="constrained")
    left, *right = figure.subplots(1, 2 if speeds else 1, squeeze=False)[0]
    places = range(len(rows))
    left.bar([p - 0.2 for p in places], [_number(line.printed) for line in lines], 0.4, color=_PAPER, label="printed")
    left.bar([p + 0.2 for p in places], [float(line.ours or 0) for line in lines], 0.4, color=_OURS, label="counted")
    left.set(ylabel="GFLOPs a 224-pixel image", xlabel="scope")
    accuracy = left.twinx()
    accuracy.plot(places, [_number(f) for f in figures if f.column == "top-1"], "o-", color=_OTHER)
    accuracy.set_ylabel("ImageNet top-1, by the paper (%)", color=_OTHER)
    left.set_xticks(list(places), rows)
    figure.legend(loc="outside lower center", ncols=2)
    for axis in right:
        axis.bar([p for p in places if rows[p] in speeds], list(speeds.values()), 0.6, color=_OURS)
        axis.set(ylabel="images a second", xlabel="scope", title=machine)
        axis.set_xticks(list(places), rows)
    figure.suptitle("Scope of ResNet-50 with lambda layers in c3 to c5 (Table 10)")
    return figure


def _number(figure: Printed) -> float:
    return float(figure.value)
