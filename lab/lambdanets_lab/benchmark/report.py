"""Rows of results as JSON, their machine, ratios of times, tables and figures."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lambdanets.terminal import text_table
from lambdanets_lab import plot_style
from lambdanets_lab.benchmark.layer import CONVOLUTION, OURS
from lambdanets_lab.benchmark.measurement import Row
from lambdanets_lab.plot_style import BASELINES, GRID, REFERENCE
from lambdanets_lab.timing import summarize

_LABELS = {CONVOLUTION: "3x3 convolution"}


def row_to_json(row: Row) -> dict[str, Any]:
    """A row with its statistics, for results.json."""
    content = dataclasses.asdict(row)
    if row.seconds:
        names = ("median_seconds", "lower_quartile_seconds", "upper_quartile_seconds")
        content |= zip(names, summarize(row.seconds), strict=True)
    return content


def read_rows(content: Mapping[str, Any]) -> list[Row]:
    """Make rows from the content of results.json."""
    names = [field.name for field in dataclasses.fields(Row)]
    return [Row(**{name: row[name] for name in names if name in row}) for row in content["rows"]]


def describe_setup(content: Mapping[str, Any]) -> str:
    """Name the processor or GPU, PyTorch's version and the data type of results.json."""
    machine = content["hardware"]
    cpu = f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores"
    name = machine["gpu"] if content["device"] == "cuda" else cpu
    return f"{name}, PyTorch {content['versions']['torch']}, {content['options']['dtype']}"


def ratios(rows: Sequence[Row], base: str | None) -> list[tuple[Row, float]]:
    """Pair each row with its time / that of candidate `base` in the same case, if both exist."""
    bases = {tuple(row.sizes.items()): row.median for row in rows if row.candidate == base}
    pairs = [(row, row.median, bases.get(tuple(row.sizes.items()))) for row in rows]
    return [(row, median / of_base) for row, median, of_base in pairs if median and of_base]


def case_table(rows: Sequence[Row], baseline: str | None, batch_size: int | None = None) -> str:
    """Format the rows of one case as a text table, with ratios to a baseline. batch_size: to show images/s."""
    title = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rows[0].sizes.items())
    ratio = {row.candidate: value for row, value in ratios(rows, baseline)}
    lines = []
    for row in (row for row in rows if not row.skip_reason):
        median, lower, upper = summarize(row.seconds)
        cells = {"candidate": row.candidate, "median ms": f"{median * 1e3:.2f}"}
        cells |= {"quartiles": f"{lower * 1e3:.2f} to {upper * 1e3:.2f}", "runs": str(len(row.seconds))}
        if batch_size is not None:
            cells["images/s"] = f"{batch_size / median:.1f}"
        cells["peak MiB"] = f"{(row.peak_bytes or 0) / 2**20:.2f}"
        if row.candidate in ratio:
            cells[f"/ {baseline}"] = f"{ratio[row.candidate]:.2f}"
        if row.errors:
            cells["error"] = f"{max(row.errors.values()):.0e}"
        lines.append(cells)
    header = [*dict.fromkeys(["candidate", *(name for cells in lines for name in cells)])]
    table = text_table([header, *([cells.get(name, "") for name in header] for cells in lines)])
    skipped = [f"  {row.candidate} skipped: {row.skip_reason}" for row in rows if row.skip_reason]
    return "\n".join(["", title, table, *skipped])


def draw_layer_times(rows: Sequence[Row]) -> Figure:
    """Draw the time with quartiles, relative to the 3x3 convolution; one panel per scope and pass."""
    names = list(dict.fromkeys(row.candidate for row in rows if row.median))
    base = next((name for name in (CONVOLUTION, OURS) if name in names), names[0])
    plotted = [name for name in names if name != base] or names
    all_pairs = ratios(rows, base)
    limits = min(ratio for _, ratio in all_pairs) / 2, max(ratio for _, ratio in all_pairs) * 1.5  # of all panels
    panels = group(all_pairs, lambda pair: (pair[0].sizes["scope"], pair[0].sizes["pass"]))
    figure, axes = plot_style.subplots(len(panels), height=3.4)
    handles: dict[str, Any] = {}
    for axis, ((scope, phase), pairs) in zip(axes, panels.items(), strict=True):
        shapes = list(dict.fromkeys(row.sizes["shape"] for row, _ in pairs))
        axis.axhline(1, color=REFERENCE)
        for row, ratio in pairs:
            if row.candidate not in plotted:
                continue
            offset = (plotted.index(row.candidate) - (len(plotted) - 1) / 2) * 0.7 / len(plotted)
            x = shapes.index(row.sizes["shape"]) + offset
            median, lower, upper = summarize(row.seconds)
            spread = [[(median - lower) / median * ratio], [(upper - median) / median * ratio]]
            color, marker = color_and_marker(row.candidate, names)
            handles[_LABELS.get(row.candidate, row.candidate)] = axis.errorbar(
                x, ratio, spread, fmt=marker, color=color, capsize=3
            )
            if row.candidate == OURS:
                text = f"{ratio:.2g}"
                axis.annotate(text, (x, ratio), (-8, -4), textcoords="offset points", ha="right", fontsize=10)
        axis.set_xticks(range(len(shapes)), shapes, fontsize=10)
        axis.set(yscale="log", ylim=limits, xlim=(-0.75, len(shapes) - 0.5), title=f"{phase}, scope {scope}x{scope}")
        axis.set(xlabel="map (height x width x channels)", ylabel=f"time / {_LABELS.get(base, base)}")
        axis.yaxis.set_major_locator(LogLocator(base=2, numticks=12))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.grid(axis="y", **GRID)
    title = f"1 = as fast as the {_LABELS.get(base, base)}"
    options: dict[str, Any] = {"loc": "outside upper center", "ncols": min(4, len(handles))}
    figure.legend(handles.values(), handles.keys(), title=title, **options)
    return figure


def draw_scaling(rows: Sequence[Row]) -> Figure:
    """Draw time and peak memory against n, log-log, with fitted exponents; one row of panels per setting and pass."""
    panels = group([row for row in rows if row.seconds], lambda row: (row.sizes["setting"], row.sizes["pass"]))
    exponents = fit_exponents(rows)
    names = list(dict.fromkeys(row.candidate for row in rows))
    figure, axes = plot_style.subplots(len(panels), 2, width=11, height=4.2)
    for i, ((setting, phase), panel) in enumerate(panels.items()):
        time_axes, memory_axes = axes[2 * i : 2 * i + 2]
        for name, points in group(panel, lambda row: row.candidate).items():
            sizes = [row.sizes["n"] for row in points]
            exponent = exponents.get((name, setting, phase))
            label = name if exponent is None else f"{name}: n^{exponent:.2f}"
            color, marker = color_and_marker(name, names)
            style: dict[str, Any] = {"color": color, "marker": marker}
            time_axes.plot(sizes, [summarize(row.seconds).median * 1e3 for row in points], label=label, **style)
            memory_axes.plot(sizes, [(row.peak_bytes or 0) / 2**20 for row in points], **style)
        ticks = sorted({row.sizes["n"] for row in panel})
        for ax, ylabel in ((time_axes, "time (ms)"), (memory_axes, "peak memory (MiB)")):
            ax.set(xscale="log", yscale="log", title=f"{setting}, {phase}")
            ax.set(xlabel="positions n", ylabel=ylabel)
            ax.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize=10)
            ax.set_xticks([], minor=True)
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.grid(**GRID)
        time_axes.legend(fontsize=9)
    return figure


def group(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Return the items by their key, in the order of their first item."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def fit_exponents(rows: Sequence[Row]) -> dict[tuple[str, str, str], float]:
    """Fit the exponent of time against n to the larger half of the sizes, by candidate, setting and pass."""
    points = [(row.candidate, row.sizes, median) for row in rows if (median := row.median)]
    groups = group(points, lambda point: (point[0], point[1]["setting"], point[1]["pass"]))
    exponents = {}
    for key, measured in groups.items():
        larger = measured[-max(2, math.ceil(len(measured) / 2)) :]
        sizes = [math.log(sizes["n"]) for _, sizes, _ in larger]
        if len(set(sizes)) > 1:
            times = [math.log(median) for *_, median in larger]
            exponents[key] = statistics.linear_regression(sizes, times).slope
    return exponents


def color_and_marker(name: str, names: Sequence[str]) -> tuple[str, str]:
    if name == OURS:
        return plot_style.OURS, "o"
    repeats, number = divmod([other for other in names if other != OURS].index(name), len(BASELINES))
    return BASELINES[number][0], BASELINES[(number + repeats) % len(BASELINES)][1]
