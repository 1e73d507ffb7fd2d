"""Pictures of a run for people: its curves, and what it got right and wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lambdanets.training.data.datasets import LabelledImages
from lambdanets.training.evaluation import Judgement

WRONG, RIGHT = "#c2410c", "#15803d"
COLUMNS, ROWS = 8, 2


def draw_curves(rows: Sequence[Sequence[Any]], path: Path) -> None:
    """Loss and top-1 of training and validation against the step, from the rows of metrics.csv."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for split, colour in (("train", "#94a3b8"), ("val", "#1d4ed8")):
        chosen = [row for row in rows if row[2] == split]
        steps = [row[0] for row in chosen]
        marker = "o" if split == "val" else None
        for axis, column in zip(axes, (3, 4), strict=True):
            axis.plot(steps, [row[column] for row in chosen], color=colour, label=split, marker=marker, markersize=3)
    for axis, name in zip(axes, ("loss", "top-1"), strict=True):
        axis.set(xlabel="step", title=name)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)


def draw_predictions(judgement: Judgement, images: LabelledImages, classes: Sequence[str], path: Path) -> None:
    """The surest mistakes above, and right answers from the least sure to the surest below; class and confidence."""
    wrong = np.flatnonzero(judgement.labels != judgement.predicted)
    right = np.flatnonzero(judgement.labels == judgement.predicted)
    wrong = wrong[np.argsort(-judgement.confidence[wrong], kind="stable")][: COLUMNS * ROWS]
    right = right[np.argsort(judgement.confidence[right], kind="stable")]
    right = right[np.linspace(0, len(right) - 1, min(len(right), COLUMNS * ROWS)).astype(int)]
    figure = Figure(figsize=(1.45 * COLUMNS, 1.85 * 2 * ROWS + 0.8), layout="constrained")
    upper, lower = np.asarray(figure.subfigures(2, 1))
    count = len(judgement.labels)
    parts = (
        (upper, wrong, WRONG, f"wrong: {int((judgement.labels != judgement.predicted).sum())} of {count}"),
        (lower, right, RIGHT, f"right: {int((judgement.labels == judgement.predicted).sum())} of {count}"),
    )
    for half, chosen, colour, title in parts:
        half.suptitle(title, color=colour, fontsize=11)
        grid = half.subplots(ROWS, COLUMNS)
        for axis in grid.flat:
            axis.set_axis_off()
        for axis, i in zip(grid.flat, chosen, strict=False):
            image, label = images.load(int(judgement.indices[i]))
            said = f"{classes[judgement.predicted[i]]} {judgement.confidence[i]:.2f}"
            truth = f"\nis {classes[label]}" if judgement.predicted[i] != label else ""
            _show(axis, image, said + truth, colour)
    figure.savefig(path, dpi=110)


def _show(axis: Axes, image: Image.Image, title: str, colour: str) -> None:
    axis.imshow(np.asarray(image), cmap="gray" if image.mode == "L" else None, vmin=0, vmax=255)
    axis.set_title(title, fontsize=7, color=colour)
