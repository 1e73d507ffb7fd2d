"""Draw accuracy against training time (Figure 4), and FLOPs and throughput against the scope (Table 10)."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lambdanets_lab import plot_style
from lambdanets_lab.plot_style import GRID, NEUTRAL, OURS
from lambdanets_lab.tables.paper import select_numbers
from lambdanets_lab.tables.verdicts import CellValues, compare

_LABEL: dict[str, Any] = {"fontsize": 10, "ha": "left", "va": "top", "rotation_mode": "anchor"}


def draw(folder: Path, measured: CellValues, machine: str = "") -> dict[str, Path]:
    """Draw frontier.png and scope.png into a folder, which is created if missing; return their paths by table.

    Accuracies are the paper's. Measured times have separate panels.
    """
    plot_style.save(_frontier(measured, machine), folder / "frontier.png")
    plot_style.save(_scope(measured, machine), folder / "scope.png")
    return {"18": folder / "frontier.png", "10": folder / "scope.png"}


def _frontier(measured: CellValues, machine: str) -> Figure:
    """Draw top-1 against the time of a training step, with the paper's times and, in another panel, measured ones."""
    numbers = select_numbers(["18"])
    accuracy = {n.row: float(n.value) for n in numbers if n.column == "supervised top-1"}
    seconds = {n.row: float(n.value) for n in numbers if n.column == "train step latency"}
    ours = {row: measured[key][0] for row in accuracy if (key := ("18", row, "train step latency")) in measured}
    panels = {"time on 8 TPUv3 cores (paper)": seconds} | ({f"time on {machine}": ours} if ours else {})
    figure, axes = plot_style.subplots(len(panels), height=4.6)
    for axis, (title, times) in zip(axes, panels.items(), strict=True):
        rows = [row for row in accuracy if row in times]
        axis.plot([times[row] for row in rows], [accuracy[row] for row in rows], "o-", color=OURS)
        for row in rows:
            depth, size = row.removeprefix("depth ").removesuffix("px").split(", ")
            point = (times[row], accuracy[row])
            axis.annotate(f"({depth}, {size})", point, (4, -4), textcoords="offset points", rotation=-40, **_LABEL)
        axis.set(xscale="log", xlabel="time per training step of 1,024 images (s)", title=title)
        axis.set_ylabel("ImageNet top-1, paper (%)")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
        axis.margins(0.15)
        axis.grid(**GRID)
    figure.suptitle("LambdaResNets (depth, image size), 350 epochs")
    return figure


def _scope(measured: CellValues, machine: str) -> Figure:
    """Draw FLOPs, the paper's accuracy and, if measured, throughput against the scope."""
    numbers = select_numbers(["10"])
    comparisons = [c for c in compare(numbers) if c.paper.column == "FLOPs"]
    rows = [c.paper.row for c in comparisons]
    speeds = {row: measured[key][0] for row in rows if (key := ("10", row, "throughput")) in measured}
    figure, axes = plot_style.subplots(3 if speeds else 2)
    x = range(len(rows))
    paper, ours = [float(c.paper.value) for c in comparisons], [float(c.ours or 0) for c in comparisons]
    axes[0].bar([p - 0.2 for p in x], paper, 0.4, color=NEUTRAL, label="paper")
    axes[0].bar([p + 0.2 for p in x], ours, 0.4, color=OURS, label="counted")
    axes[0].set(ylabel="GFLOPs per 224-pixel image")
    axes[0].legend(fontsize=10)
    axes[1].plot(x, [float(n.value) for n in numbers if n.column == "top-1"], "o-", color=OURS)
    axes[1].set(ylabel="ImageNet top-1, paper (%)")
    if speeds:
        axes[2].bar([p for p in x if rows[p] in speeds], list(speeds.values()), 0.6, color=OURS)
        axes[2].set(ylabel="throughput (images/s)", title=machine)
    for axis in axes:
        axis.set_xticks(list(x), rows)
        axis.set(xlabel="scope")
        axis.grid(axis="y", **GRID)
    figure.suptitle("Scope of ResNet-50 with lambda layers in c3 to c5 (Table 10)")
    return figure
