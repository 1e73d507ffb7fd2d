"""Figures with Matplotlib: predictions beside the truth, precision and recall, and the confusion of classes."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from lambdanets.data.labeled_images import LabeledImages
from lambdanets.files import atomic_open, atomic_write, encode_utf8
from lambdanets.inference.coco_scores import RECALLS, Scores
from lambdanets.terminal import csv_table, printable

if TYPE_CHECKING:
    from lambdanets.inference.classifier import ClassificationEvaluation

SHEET = "predictions.png"
COLUMNS, MAX_SHOWN = 8, 16  # of wrong predictions, and of correct ones, of a classifier
MAX_CLASSES_WITH_COUNTS, MAX_CLASSES_WITH_NAMES = 20, 100  # in a confusion matrix
WRONG_COLOR, CORRECT_COLOR = "#c2410c", "#15803d"


def draw_pairs(rows: Sequence[tuple[Image.Image, Image.Image]], folder: Path) -> None:
    """Write predictions.png, with drawings of the ground truth and the prediction of each image."""
    heights = [min(7 * truth.height / truth.width, 20) for truth, _ in rows]
    figure = Figure(figsize=(14, 0.5 + sum(heights)), layout="constrained")
    axes = figure.subplots(len(rows), 2, squeeze=False, height_ratios=heights)
    for axis, title in zip(axes[0], ("ground truth", "prediction"), strict=True):
        axis.set_title(title, fontsize=16)
    for axis, image in zip(axes.flat, (image for row in rows for image in row), strict=True):
        axis.imshow(np.asarray(image))
        axis.set_axis_off()
    _save(figure, folder / SHEET)


def _save(figure: Figure, path: Path) -> None:
    with atomic_open(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for class names in other scripts
        figure.savefig(file, format="png", dpi=110)


def draw_precision_recall(scores: Scores, folder: Path) -> None:
    """Plot the curves of boxes and masks, at IoU 0.5 and 0.75 and averaged over IoUs, in precision_recall.png."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    summary = scores.summary()
    labels = {"AP50": "IoU 0.5", "AP75": "IoU 0.75", "AP": "mean"}
    for axis, (iou_type, title) in zip(figure.subplots(1, 2), (("bbox", "boxes"), ("segm", "masks")), strict=True):
        axis.set(xlabel="recall", ylabel="precision", title=title, xlim=(0, 1), ylim=(0, 1.02))
        axis.grid(alpha=0.3)
        for name, label in labels.items():
            curve, average = scores.curve(iou_type, name), summary[iou_type][name]
            if curve is not None and average is not None:
                axis.plot(RECALLS, curve, label=f"{label}: {name} {100 * average:.1f}%", clip_on=False)
        if axis.lines:
            axis.legend(loc="upper right")
        else:
            axis.text(0.5, 0.5, "no objects", ha="center", va="center")
    _save(figure, folder / "precision_recall.png")


def draw_predictions(predictions: "ClassificationEvaluation", images: LabeledImages, folder: Path) -> None:
    """Write predictions.png: the most confident errors, then correct predictions of increasing confidence."""
    classes = [printable(name) for name in predictions.classes]
    is_correct = predictions.labels == predictions.predicted
    wrong, correct = np.flatnonzero(~is_correct), np.flatnonzero(is_correct)
    confident_errors = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:MAX_SHOWN]
    by_confidence = correct[np.argsort(predictions.confidence[correct], kind="stable")]
    evenly_spaced = np.linspace(0, len(correct) - 1, min(len(correct), MAX_SHOWN)).astype(int)
    shown = [*confident_errors, *by_confidence[evenly_spaced]]
    num_rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(1.5 * COLUMNS, 0.5 + 1.95 * num_rows), layout="constrained")
    figure.suptitle(f"{len(wrong)} wrong and {len(correct)} correct of {len(is_correct)}", fontsize=13)
    grid = figure.subplots(num_rows, COLUMNS, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for axis, i in zip(grid.flat, shown, strict=False):
        image, _ = images.load(int(predictions.indices[i]))
        prediction = f"{classes[predictions.predicted[i]]} {predictions.confidence[i]:.2f}"
        truth = "" if is_correct[i] else f"\nis {classes[predictions.labels[i]]}"
        color = CORRECT_COLOR if is_correct[i] else WRONG_COLOR
        axis.imshow(np.asarray(image), cmap="gray" if image.mode == "L" else None, vmin=0, vmax=255)
        axis.set_title(prediction + truth, fontsize=9, color=color, parse_math=False)  # names may contain $
    _save(figure, folder / SHEET)


def write_confusion(evaluation: "ClassificationEvaluation", folder: Path) -> None:
    """Write confusion_matrix.csv and confusion_matrix.png: rows are true classes, columns are predicted ones."""
    classes, matrix = evaluation.classes, evaluation.confusion_matrix
    rows = [(name, *row) for name, row in zip(classes, matrix.tolist(), strict=True)]
    atomic_write(folder / "confusion_matrix.csv", encode_utf8(csv_table([("true \\ predicted", *classes), *rows])))
    fractions = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = min(max(4.0, 0.3 * len(classes)), 24.0)
    figure = Figure(figsize=(side + 1.5, side + 0.5), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(fractions, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=axis, label="fraction of the true class")
    axis.set(xlabel="predicted", ylabel="true", title=f"{matrix.sum():,} images, top-1 {evaluation.top1:.4f}")
    if len(classes) <= MAX_CLASSES_WITH_NAMES:
        names = [printable(name) for name in classes]
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8, parse_math=False)
        axis.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    if len(classes) <= MAX_CLASSES_WITH_COUNTS:
        for (row, column), count in np.ndenumerate(matrix):
            color = "white" if fractions[row, column] > 0.5 else "black"
            axis.text(column, row, f"{count}", ha="center", va="center", fontsize=8, color=color)
    _save(figure, folder / "confusion_matrix.png")
