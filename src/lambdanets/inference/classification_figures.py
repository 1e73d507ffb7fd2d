"""Pictures of what a classifier got right and wrong."""

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lambdanets.data.datasets import LabeledImages
from lambdanets.files import atomic_open
from lambdanets.inference.classification import ClassificationEvaluation

WRONG, RIGHT = "#c2410c", "#15803d"
COLUMNS = 8
SHOWN = 16  # of each kind


def draw_predictions(predictions: ClassificationEvaluation, images: LabeledImages, path: Path) -> None:
    """The surest mistakes above, and right answers from the least sure to the surest below; class and confidence."""
    classes = predictions.classes
    hit = predictions.labels == predictions.predicted
    wrong, right = np.flatnonzero(~hit), np.flatnonzero(hit)
    surest_wrong = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:SHOWN]
    right_by_confidence = right[np.argsort(predictions.confidence[right], kind="stable")]
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
            image, _ = images.load(int(predictions.indices[i]))
            label = predictions.labels[i]
            said = f"{classes[predictions.predicted[i]]} {predictions.confidence[i]:.2f}"
            truth = f"\nis {classes[label]}" if predictions.predicted[i] != label else ""
            _show(axis, image, said + truth, colour)
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)


def _show(axis: Axes, image: Image.Image, title: str, colour: str) -> None:
    axis.imshow(np.asarray(image), cmap="gray" if image.mode == "L" else None, vmin=0, vmax=255)
    axis.set_title(title, fontsize=9, color=colour, parse_math=False)  # a class may be called a$b^c
