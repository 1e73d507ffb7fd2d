"""Figures with Matplotlib: predictions beside the truth, precision and recall, and the confusion of classes."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import make_semantic_mask
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.files import atomic_open, atomic_write, encode_utf8
from lambdanets.inference.coco_scores import RECALLS, Scores
from lambdanets.inference.drawing import draw_ground_truth, overlay, overlay_classes
from lambdanets.inference.options import MIN_SCORE
from lambdanets.terminal import printable
from lambdanets.text_tables import csv_table

if TYPE_CHECKING:
    from lambdanets.inference.classifier import ClassificationEvaluation
    from lambdanets.inference.detector import DetectionEvaluation, Detector
    from lambdanets.inference.segmenter import Segmenter

SHEET, CURVES = "predictions.png", "precision_recall.png"  # file names
COLUMNS = 8  # of predictions of a classifier
MAX_SHOWN, MAX_ROWS = 16, 8  # wrong predictions, and correct ones, of a classifier; images with truth and prediction
MAX_CLASSES_WITH_COUNTS, MAX_CLASSES_WITH_NAMES = 20, 100  # in a confusion matrix
WRONG_COLOR, CORRECT_COLOR = "#c2410c", "#15803d"


def draw_detections(
    detector: "Detector", images: AnnotatedImages, evaluation: "DetectionEvaluation", folder: Path
) -> None:
    """Write predictions.png, with evenly spaced images of the set, and precision_recall.png into a folder."""

    def render(image: Image.Image, annotated: AnnotatedImage) -> tuple[Image.Image, Image.Image]:
        (found,) = detector.infer([image])
        return draw_ground_truth(image, annotated, detector.classes), overlay(image, found.above(MIN_SCORE))

    _draw_pairs(images, evaluation.readable, render, folder / SHEET)
    draw_precision_recall(evaluation.scores, folder / CURVES)


def draw_segmentations(segmenter: "Segmenter", images: AnnotatedImages, readable: Sequence[int], folder: Path) -> None:
    """Write predictions.png into a folder: targets and predictions of evenly spaced images.

    readable: indices of the readable images.
    """

    def render(image: Image.Image, annotated: AnnotatedImage) -> tuple[Image.Image, Image.Image]:
        (predicted,) = segmenter.infer([image])
        target = make_semantic_mask(annotated)
        return overlay_classes(image, target), overlay_classes(image, predicted.labels.numpy())

    _draw_pairs(images, readable, render, folder / SHEET)


def _draw_pairs(
    images: AnnotatedImages,
    readable: Sequence[int],
    render: Callable[[Image.Image, AnnotatedImage], tuple[Image.Image, Image.Image]],
    path: Path,
) -> None:
    """Draw truth and prediction of evenly spaced images. render: draws both of an image."""
    positions = np.linspace(0, len(readable) - 1, min(len(readable), MAX_ROWS)).astype(int)
    rows = [render(*images.load(readable[position])) for position in positions]
    heights = [0.5] + [min(7 * truth.height / truth.width, 20) for truth, _ in rows]
    figure = Figure(figsize=(14, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 2, height_ratios=heights)
    for axis, title in zip(axes[0], ("ground truth", "prediction"), strict=True):
        axis.text(0.5, 0.5, title, fontsize=16, ha="center", va="center")
    for axis, image in zip(axes[1:].flat, (image for row in rows for image in row), strict=True):
        axis.imshow(np.asarray(image))
    for axis in axes.flat:
        axis.set_axis_off()
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with atomic_open(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for class names in other scripts
        figure.savefig(file, format="png", dpi=110)


def draw_precision_recall(scores: Scores, path: Path) -> None:
    """Plot the precision-recall curves of boxes and masks, at IoU 0.5 and 0.75 and averaged over IoUs, to a PNG."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    summary = scores.summary()
    curves = (("AP50", 0.5, "IoU 0.5"), ("AP75", 0.75, "IoU 0.75"), ("AP", None, "mean"))
    for axis, (iou_type, title) in zip(figure.subplots(1, 2), (("bbox", "boxes"), ("segm", "masks")), strict=True):
        axis.set(xlabel="recall", ylabel="precision", title=title, xlim=(0, 1), ylim=(0, 1.02))
        axis.grid(alpha=0.3)
        for name, iou, label in curves:
            curve, average = scores.curve(iou_type, iou), summary[iou_type][name]
            if curve is not None and average is not None:
                axis.plot(RECALLS, curve, label=f"{label}: {name} {100 * average:.1f}%", clip_on=False)
        if axis.lines:
            axis.legend(loc="upper right")
        else:
            axis.text(0.5, 0.5, "no objects", ha="center", va="center")
    _save(figure, path)


def draw_predictions(predictions: "ClassificationEvaluation", images: LabeledImages, folder: Path) -> None:
    """Write predictions.png: the most confident errors, and below them correct predictions of increasing confidence."""
    classes = [printable(name) for name in predictions.classes]
    is_correct = predictions.labels == predictions.predicted
    wrong, correct = np.flatnonzero(~is_correct), np.flatnonzero(is_correct)
    confident_errors = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:MAX_SHOWN]
    by_confidence = correct[np.argsort(predictions.confidence[correct], kind="stable")]
    evenly_spaced = np.linspace(0, len(correct) - 1, min(len(correct), MAX_SHOWN)).astype(int)
    rows = [
        chosen[start : start + COLUMNS]
        for chosen in (confident_errors, by_confidence[evenly_spaced])
        for start in range(0, len(chosen), COLUMNS)
    ]
    figure = Figure(figsize=(1.5 * COLUMNS, 0.5 + 1.95 * len(rows)), layout="constrained")
    figure.suptitle(f"{len(wrong)} wrong and {len(correct)} correct of {len(is_correct)}", fontsize=13)
    grid = figure.subplots(len(rows), COLUMNS, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for axis, i in [(grid[row, column], i) for row, chosen in enumerate(rows) for column, i in enumerate(chosen)]:
        image, _ = images.load(int(predictions.indices[i]))
        prediction = f"{classes[predictions.predicted[i]]} {predictions.confidence[i]:.2f}"
        truth = "" if is_correct[i] else f"\nis {classes[predictions.labels[i]]}"
        color = CORRECT_COLOR if is_correct[i] else WRONG_COLOR
        axis.imshow(np.asarray(image), cmap="gray" if image.mode == "L" else None, vmin=0, vmax=255)
        axis.set_title(prediction + truth, fontsize=9, color=color, parse_math=False)  # names may contain $
    _save(figure, folder / SHEET)


def write_confusion(evaluation: "ClassificationEvaluation", folder: Path) -> None:
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
