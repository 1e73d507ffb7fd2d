"""Pictures of a benchmark's results."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from lambdanets.evidence.benchmark.layer import CONVOLUTION, OURS
from lambdanets.evidence.benchmark.race import Row
from lambdanets.evidence.benchmark.report import Report, figures
from lambdanets.evidence.benchmark.timing import summarize
from lambdanets.files import atomic_open

# ours stands out, the convolution is the yardstick, rivals share the rest
_COLOURS = {OURS: "#1d4ed8", CONVOLUTION: "#111827"}
_OTHERS = ("#c2410c", "#15803d", "#a21caf", "#0891b2", "#ca8a04", "#64748b", "#be123c")
PLOT = "{}.png"


def draw(report: Report, folder: Path) -> None:
    """Write the plot of the kind, or none where nothing was measured."""
    if report.kind == "model":
        _draw_model(report, folder)
    elif report.kind == "scaling":
        _draw_scaling(report, folder)
    else:
        _draw_layers(report, folder)


def _draw_layers(report: Report, folder: Path) -> None:
    """A point a contestant and shape, a panel for each scope and pass: milliseconds with quartiles, or MiB."""
    memory = report.kind == "memory"
    measured = [row for row in report.rows if (row.peak_bytes is not None if memory else row.seconds)]
    panels = _groups(measured, lambda row: (row.sizes["scope"], row.sizes["pass"]))
    if not panels:
        return
    figure = Figure(figsize=(11, 3.2 * len(panels)), layout="constrained")
    names = _names(measured)
    for axis, ((scope, done), rows) in zip(_axes(figure, len(panels)), panels.items(), strict=True):
        shapes = list(dict.fromkeys(row.sizes["shape"] for row in rows))
        width = 0.8 / len(names)
        for row in rows:
            place = shapes.index(row.sizes["shape"]) + (names.index(row.contestant) - (len(names) - 1) / 2) * width
            colour = _colour(row.contestant, names)
            if row.peak_bytes is not None:
                axis.plot(place, row.peak_bytes / 2**20, "o", color=colour)
            else:
                median, lower, upper = summarize(row.seconds)
                spread = [[(median - lower) * 1e3], [(upper - median) * 1e3]]
                axis.errorbar(place, median * 1e3, spread, fmt="o", color=colour, capsize=3)
        axis.set_xticks(range(len(shapes)), shapes)
        axis.set(yscale="log", ylabel="peak MiB" if memory else "ms", title=f"scope {scope}, {done}")
        for border in range(1, len(shapes)):
            axis.axvline(border - 0.5, color="#cbd5e1", linewidth=0.8)
        axis.set_xlim(-0.5, len(shapes) - 0.5)
        _number(axis.yaxis)
        axis.grid(axis="y", which="both", alpha=0.3)
    _legend(figure, names)
    _save(figure, folder / PLOT.format(report.kind))


def _draw_model(report: Report, folder: Path) -> None:
    """Throughput relative to plain ResNet-50, a panel a pass."""
    found = [entry for entry in figures("model", report.rows) if not entry["noisy"]]
    if not found:
        return
    passes = list(dict.fromkeys(entry["pass"] for entry in found))
    names = list(dict.fromkeys(entry["contestant"] for entry in found))
    figure = Figure(figsize=(9, (0.8 + 0.3 * len(names)) * len(passes) + 0.4), layout="constrained")
    for axis, done in zip(_axes(figure, len(passes)), passes, strict=True):
        entries = [entry for entry in found if entry["pass"] == done]
        values = [entry["throughput_relative_to_resnet50"] for entry in entries]
        colours = [_COLOURS.get(entry["contestant"].split()[0], "#94a3b8") for entry in entries]
        bars = axis.barh([entry["contestant"] for entry in entries], values, color=colours)
        axis.bar_label(bars, fmt="%.2f", padding=3)
        axis.invert_yaxis()
        axis.set(title=done, xlabel="throughput / ResNet-50")
        axis.axvline(1, color="#111827", linewidth=0.8)
        axis.margins(x=0.12)
    _save(figure, folder / PLOT.format(report.kind))


def _draw_scaling(report: Report, folder: Path) -> None:
    """Milliseconds and peak MiB against n, logarithmic, with the fitted exponents; a row a setting and pass."""
    panels = _groups([row for row in report.rows if row.seconds], lambda row: (row.sizes["setting"], row.sizes["pass"]))
    if not panels:
        return
    exponents = {
        (entry["contestant"], entry["setting"], entry["pass"]): entry["exponent_of_time"]
        for entry in figures("scaling", report.rows)
    }
    names = _names(report.rows)
    figure = Figure(figsize=(11, 3.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), ((setting, done), rows) in zip(axes, panels.items(), strict=True):
        for name, points in _groups(rows, lambda row: row.contestant).items():
            sizes = [row.sizes["n"] for row in points]
            summaries = [summarize(row.seconds) for row in points]
            exponent = exponents.get((name, setting, done))
            label = name if exponent is None else f"{name}: n^{exponent:.2f}"
            style: dict[str, Any] = {"color": _colour(name, names), "marker": "o", "markersize": 3}
            left.plot(sizes, [summary.median * 1e3 for summary in summaries], label=label, **style)
            bounds = [[getattr(s, f"{end}_quartile") * 1e3 for s in summaries] for end in ("lower", "upper")]
            left.fill_between(sizes, *bounds, color=style["color"], alpha=0.2)
            right.plot(sizes, [(row.peak_bytes or 0) / 2**20 for row in points], label=name, **style)
        ticks = sorted({row.sizes["n"] for row in rows})
        for axis, what in ((left, "ms"), (right, "peak MiB")):
            axis.set(xscale="log", yscale="log", xlabel="positions n", ylabel=what, title=f"{setting}, {done}")
            axis.set_xticks(ticks, [str(n) for n in ticks], fontsize=8, rotation=45)
            axis.set_xticks([], minor=True)
            _number(axis.yaxis)
            axis.grid(alpha=0.3)
        left.legend(fontsize=8)
    _save(figure, folder / PLOT.format(report.kind))


def _groups(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.contestant for row in rows))


def _colour(name: str, names: Sequence[str]) -> str:
    others = [other for other in names if other not in _COLOURS]
    return _COLOURS[name] if name in _COLOURS else _OTHERS[others.index(name) % len(_OTHERS)]


def _axes(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(count, 1, squeeze=False).flat)


class _PlainNumbers(LogFormatter):
    """20 instead of 2 x 10^1; between the powers of ten where there are few of those."""

    def __call__(self, value: float, position: int | None = None) -> str:
        return f"{value:g}" if super().__call__(value, position) else ""


def _number(axis: Axis) -> None:
    axis.set_major_formatter(_PlainNumbers())
    axis.set_minor_formatter(_PlainNumbers(minor_thresholds=(2, 0.5)))


def _legend(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=_colour(name, names), label=name) for name in names]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(names), fontsize=8)


def _save(figure: Figure, path: Path) -> None:
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)
