"""Writes per-class accuracy as CSV, and the confusion matrix as CSV and as a figure."""

import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lambdanets.files import atomic_open, atomic_write, encode_utf8
from lambdanets.inference.classification import ClassificationEvaluation
from lambdanets.terminal import printable
from lambdanets.text_tables import csv_table

MAX_CLASSES_WITH_COUNTS = 20  # with more classes, the cells do not show counts
MAX_CLASSES_WITH_NAMES = 100  # with more classes, the axes do not show names


def write_confusion(evaluation: ClassificationEvaluation, folder: Path) -> None:
    """Write per_class_accuracy.csv, confusion_matrix.csv and confusion_matrix.png into a folder.

    The rows of the matrix are true classes, the columns are predicted classes.
    """
    classes, matrix = evaluation.classes, evaluation.confusion_matrix
    by_class = [
        (name, images, correct, "" if accuracy is None else f"{accuracy:.6f}")
        for (name, accuracy), images, correct in zip(
            evaluation.accuracy_by_class.items(), matrix.sum(1).tolist(), matrix.diagonal().tolist(), strict=True
        )
    ]
    header = ("class", "images", "right", "accuracy")
    atomic_write(folder / "per_class_accuracy.csv", encode_utf8(csv_table([header, *by_class])))
    rows = [(name, *row) for name, row in zip(classes, matrix.tolist(), strict=True)]
    atomic_write(folder / "confusion_matrix.csv", encode_utf8(csv_table([("true \\ predicted", *classes), *rows])))
    _draw(matrix, classes, evaluation.top1, folder / "confusion_matrix.png")


def _draw(matrix: np.ndarray, classes: tuple[str, ...], top1: float, path: Path) -> None:
    fractions = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = min(max(4.0, 0.3 * len(classes)), 24.0)
    figure = Figure(figsize=(side + 1.5, side + 0.5), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(fractions, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=axis, label="fraction of the true class")
    axis.set(xlabel="predicted", ylabel="true", title=f"{matrix.sum():,} images, top-1 {top1:.4f}")
    if len(classes) <= MAX_CLASSES_WITH_NAMES:
        names = [printable(name) for name in classes]
        # class names may contain $
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8, parse_math=False)
        axis.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    if len(classes) <= MAX_CLASSES_WITH_COUNTS:
        for (row, column), count in np.ndenumerate(matrix):
            color = "white" if fractions[row, column] > 0.5 else "black"
            axis.text(column, row, f"{count}", ha="center", va="center", fontsize=8, color=color)
    with atomic_open(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for class names in other scripts
        figure.savefig(file, format="png", dpi=110)
