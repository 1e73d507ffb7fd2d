"""A figure of correct and wrong predictions of a classifier."""

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lambdanets.data.datasets import LabeledImages
from lambdanets.files import atomic_open
from lambdanets.inference.classification import ClassificationEvaluation
from lambdanets.terminal import printable

WRONG_COLOR, CORRECT_COLOR = "#c2410c", "#15803d"
COLUMNS = 8
MAX_SHOWN = 16  # maximum number of wrong predictions, and of correct predictions


def draw_predictions(predictions: ClassificationEvaluation, images: LabeledImages, path: Path) -> None:
    """Draw the most confident errors, and below them correct predictions with increasing confidence."""
    classes = [printable(name) for name in predictions.classes]
    is_correct = predictions.labels == predictions.predicted
    wrong, correct = np.flatnonzero(~is_correct), np.flatnonzero(is_correct)
    confident_errors = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:MAX_SHOWN]
    by_confidence = correct[np.argsort(predictions.confidence[correct], kind="stable")]
    evenly_spaced = np.linspace(0, len(correct) - 1, min(len(correct), MAX_SHOWN)).astype(int)
    sections = [
        (confident_errors, WRONG_COLOR, f"wrong: {len(wrong)} of {len(is_correct)}"),
        (by_confidence[evenly_spaced], CORRECT_COLOR, f"correct: {len(correct)} of {len(is_correct)}"),
    ]
    heights = [0.5 + 1.95 * math.ceil(len(chosen) / COLUMNS) for chosen, _, _ in sections]
    figure = Figure(figsize=(1.5 * COLUMNS, sum(heights)), layout="constrained")
    subfigures = np.asarray(figure.subfigures(len(sections), 1, height_ratios=heights))
    for subfigure, (chosen, color, title) in zip(subfigures, sections, strict=True):
        subfigure.suptitle(title, color=color, fontsize=13)
        if not len(chosen):
            continue
        grid = subfigure.subplots(math.ceil(len(chosen) / COLUMNS), COLUMNS, squeeze=False)
        for axis in grid.flat:
            axis.set_axis_off()
        for axis, i in zip(grid.flat, chosen, strict=False):
            image, _ = images.load(int(predictions.indices[i]))
            label = predictions.labels[i]
            prediction = f"{classes[predictions.predicted[i]]} {predictions.confidence[i]:.2f}"
            truth = f"\nis {classes[label]}" if predictions.predicted[i] != label else ""
            _show(axis, image, prediction + truth, color)
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)


def _show(axis: Axes, image: Image.Image, title: str, color: str) -> None:
    axis.imshow(np.asarray(image), cmap="gray" if image.mode == "L" else None, vmin=0, vmax=255)
    axis.set_title(title, fontsize=9, color=color, parse_math=False)  # class names may contain $
