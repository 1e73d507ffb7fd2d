"""Pictures of a run for people: its curves, and what it got right and wrong."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lambdanets.training.data.datasets import LabelledImages
from lambdanets.training.evaluation import Judgement
from lambdanets.training.history import History

WRONG, RIGHT = "#c2410c", "#15803d"
COLUMNS = 8
SHOWN = 16  # of each kind


class Curves(Callback):
    """Draws curves.png after an epoch, unless it was drawn within the last minute."""

    def __init__(self, folder: Path, history: History) -> None:
        self._path = folder / "curves.png"
        self._history = history
        self._drawn = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if time.monotonic() - self._drawn > 60:
            draw_curves(self._history.rows, self._path)
            self._drawn = time.monotonic()


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
    hit = judgement.labels == judgement.predicted
    wrong, right = np.flatnonzero(~hit), np.flatnonzero(hit)
    surest_wrong = wrong[np.argsort(-judgement.confidence[wrong], kind="stable")][:SHOWN]
    right_by_confidence = right[np.argsort(judgement.confidence[right], kind="stable")]
    spread = np.linspace(0, len(right) - 1, min(len(right), SHOWN)).astype(int)
    parts = [
        (surest_wrong, WRONG, f"wrong: {len(wrong)} of {len(hit)}"),
        (right_by_confidence[spread], RIGHT, f"right: {len(right)} of {len(hit)}"),
    ]
    heights = [0.5 + 1.95 * math.ceil(len(chosen) / COLUMNS) for chosen, _, _ in parts]
    figure = Figure(figsize=(1.5 * COLUMNS, sum(heights)), layout="constrained")
    halves = np.asarray(figure.subfigures(len(parts), 1, height_ratios=heights))
    for half, (chosen, colour, title) in zip(halves, parts, strict=True):
        half.suptitle(title, color=colour, fontsize=13)
        if not len(chosen):
            continue
        grid = half.subplots(math.ceil(len(chosen) / COLUMNS), COLUMNS, squeeze=False)
        for axis in grid.flat:
            axis.set_axis_off()
        for axis, i in zip(grid.flat, chosen, strict=False):
            image, _ = images.load(int(judgement.indices[i]))
            label = judgement.labels[i]
            said = f"{classes[judgement.predicted[i]]} {judgement.confidence[i]:.2f}"
            truth = f"\nis {classes[label]}" if judgement.predicted[i] != label else ""
            _show(axis, image, said + truth, colour)
    figure.savefig(path, dpi=110)


def _show(axis: Axes, image: Image.Image, title: str, colour: str) -> None:
    axis.imshow(np.asarray(image), cmap="gray" if image.mode == "L" else None, vmin=0, vmax=255)
    axis.set_title(title, fontsize=9, color=colour, parse_math=False)  # a class may be called a$b^c
