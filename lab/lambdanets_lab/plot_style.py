"""The style of all figures, which must be readable on a phone and in grayscale."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lambdanets.files import atomic_open

OURS, REFERENCE, NEUTRAL = "#0b3d91", "#111827", "#9ca3af"  # lambda layer, baseline, other bars
# Colors and markers of baselines, from dark to light.
BASELINES = (("#b91c1c", "s"), ("#0f766e", "^"), ("#c2410c", "D"), ("#7c3aed", "v"), ("#0891b2", "P"), ("#d97706", "X"))
GRID: dict[str, Any] = {"color": "#d1d5db", "linewidth": 0.8}
_STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 7,
}


def subplots(rows: int, columns: int = 1, *, width: float = 7.5, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Create a figure of rows x columns panels, each `height` inches high; return it and its axes, row by row."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height * rows), layout="constrained")
        return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, atomically, into a folder that is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(_STYLE), atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=120)
