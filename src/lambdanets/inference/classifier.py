"""Trained classifiers, their predictions, and their evaluation on labeled datasets."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL.Image import Image
from pydantic import PositiveInt
from torch import Tensor, nn

from lambdanets.data.batches import Batch, Batches
from lambdanets.data.datasets import Splits, open_evaluation_images, open_splits, remap_labels
from lambdanets.data.labeled_images import LabeledImages, image_batches
from lambdanets.errors import InputError
from lambdanets.files import atomic_write
from lambdanets.inference.figures import SHEET, new_figure, save_figure
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.inference.predictor import Evaluation, Predictor, format_score
from lambdanets.models import create_model
from lambdanets.records import check
from lambdanets.terminal import csv_table, plural, printable, text_table

COLUMNS, MAX_SHOWN = 8, 32  # in predictions.png
MAX_CLASSES_WITH_COUNTS, MAX_CLASSES_WITH_NAMES = 20, 100  # in a confusion matrix
WRONG_COLOR, CORRECT_COLOR = "#c2410c", "#15803d"


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Class probabilities of one image.

    classes: class names. probabilities: (classes,), float32 on the CPU.
    """

    classes: tuple[str, ...]
    probabilities: Tensor

    @property
    def class_name(self) -> str:
        """The most probable class."""
        return self.classes[int(self.probabilities.argmax())]

    @property
    def confidence(self) -> float:
        """The probability of the most probable class."""
        return float(self.probabilities.max())

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return names and probabilities of the `count` most probable classes, or of all, in descending order."""
        check("count", count, PositiveInt)
        best = self.probabilities.topk(min(count, len(self.classes)))
        return [(self.classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name} {probability:.3f}' for name, probability in self.top(3))})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassificationEvaluation(Evaluation):
    """Predictions of a classifier for the n readable images of a labeled dataset, in order."""

    classes: tuple[str, ...]
    labels: np.ndarray  # (n,), class indices
    predicted: np.ndarray  # (n,), class indices
    confidence: np.ndarray  # (n,), probability of the predicted class

    @property
    def top1(self) -> float:
        """Top-1 accuracy."""
        return float((self.labels == self.predicted).mean())

    @property
    def confusion_matrix(self) -> np.ndarray:
        """The number of images per true class (rows) and predicted class (columns), int64 (classes, classes)."""
        count = len(self.classes)
        return np.bincount(self.labels * count + self.predicted, minlength=count**2).reshape(count, count)

    @property
    def accuracy_by_class(self) -> dict[str, float | None]:
        """Accuracy by class name; None for a class without images."""
        matrix = self.confusion_matrix
        counts = zip(self.classes, matrix.diagonal().tolist(), matrix.sum(1).tolist(), strict=True)
        return {name: correct / images if images else None for name, correct, images in counts}


class Classifier(Predictor):
    """A trained classifier, which `lambdanets.load` returns. Its predictions are `Prediction`."""

    card_type = ClassifierCard
    command_options: ClassVar[Mapping[str, Any]] = {"top": 3}
    default_batch_size = 32

    card: ClassifierCard
    images: LabeledImages

    @staticmethod
    def build(architecture: Any, num_classes: int) -> nn.Module:
        shape = {"num_classes": num_classes, "in_chans": architecture.preprocessing.channels}
        rates = {"drop_path_rate": "drop_path", "drop_rate": "dropout"}  # of recipes
        drop_rates = {name: rate for name, field in rates.items() if (rate := getattr(architecture, field, 0.0))}
        return create_model(architecture.model, **architecture.checked_options() | drop_rates | shape)

    def infer(self, images: Sequence[Image], *, batch_size: int = 1) -> list[Prediction]:
        transform = self.card.preprocessing.transform()
        batch = torch.stack([transform(image) for image in images])
        return [Prediction(self.classes, probabilities) for probabilities in self.probabilities(batch)]

    def probabilities(self, images: Tensor) -> Tensor:
        """Return class probabilities (b, classes) of preprocessed images (b, c, h, w), float32 on the CPU.

        Raises InputError if they are NaN or inf, for example because the weights are damaged.
        """
        return self.finite_outputs(images).cpu().softmax(dim=1)

    def evaluator(self, data: str | None = None, *, data_root: str | None = None) -> Self:
        """Return the evaluator on a dataset with the same classes, with those of its images that `evaluate` describes.

        data: by default the dataset on which the classifier was trained.
        """
        known = self.card.recipe.get("data")
        if data is None or _is_same_dataset(data, known):
            if not known:
                raise InputError("data must be given for a model whose card names no dataset, got none")
            splits = open_splits_of(self.card, known, data_root)
            images, source, left_out = splits.validation, splits.source, splits.left_out
        else:
            division = _division_of(self.card)
            images, source, left_out = open_evaluation_images(data, data_root, self.card.held_out, **division)
        return replace(self, images=remap_labels(images, self.classes), source=source, left_out=left_out)

    def batches(self, **options: Any) -> Batches:
        return image_batches(self.images, self.card.preprocessing.transform(), **options)

    def measure(self, batch: Batch) -> list[Any]:
        """Return (index, label, predicted class, its probability, cross entropy) of each image."""
        if not len(batch.targets):
            return []
        logits, labels = self.finite_outputs(batch.images).cpu(), batch.targets.cpu()
        confidence, predicted = logits.softmax(dim=1).max(dim=1)
        losses = F.cross_entropy(logits, labels, reduction="none")
        columns = (batch.indices, labels, predicted, confidence, losses)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def score(self, measures: list[Any]) -> ClassificationEvaluation:
        _, labels, predicted, confidence, losses = map(np.array, zip(*measures, strict=True))
        correct = labels == predicted
        top1 = float(correct.mean())
        evaluation = ClassificationEvaluation(
            scores={"top1": round(top1, 6), "validation_images": len(labels)},
            metrics={"loss": float(losses.mean()), "top1": top1},
            lines=[f"top-1 {top1:.4f}"],
            counts=f"{plural(len(labels), 'image')}, {int(correct.sum())} correct",
            classes=self.classes,
            labels=labels,
            predicted=predicted,
            confidence=confidence.astype(np.float32),
        )
        if len(self.classes) <= MAX_CLASSES_WITH_COUNTS:
            counts, accuracies = np.bincount(labels, minlength=len(self.classes)), evaluation.accuracy_by_class
            by_class = zip(accuracies, map(str, counts), map(format_score, accuracies.values()), strict=True)
            evaluation.lines[:0] = text_table([("class", "images", "top-1"), *by_class]).splitlines()
        return evaluation

    def write_evaluation(self, evaluation: ClassificationEvaluation, folder: Path) -> None:
        """Write predictions.csv and a confusion matrix, whose rows are true classes, as CSV and as a figure, too."""
        from sklearn.metrics import ConfusionMatrixDisplay  # predictions do not need it

        predictions = [
            (self.images.name(index), self.classes[label], self.classes[predicted], round(confidence, 6))
            for index, label, predicted, confidence, _ in evaluation.measures
        ]
        columns = ("image", "class", "predicted", "probability")
        atomic_write(folder / "predictions.csv", csv_table([columns, *predictions]))
        classes, matrix = self.classes, evaluation.confusion_matrix
        rows = [(name, *row) for name, row in zip(classes, matrix.tolist(), strict=True)]
        atomic_write(folder / "confusion_matrix.csv", csv_table([("true \\ predicted", *classes), *rows]))
        side = min(max(4.0, 0.3 * len(classes)), 24.0)
        figure = new_figure(side + 1.5, side + 0.5)
        axis, has_counts = figure.subplots(), len(classes) <= MAX_CLASSES_WITH_COUNTS
        names = [printable(name).replace("$", r"\$") for name in classes]
        shown = ConfusionMatrixDisplay(matrix, display_labels=names)
        shown.plot(ax=axis, include_values=has_counts, cmap="Blues", xticks_rotation="vertical")
        axis.set_title(evaluation.counts)
        if len(classes) > MAX_CLASSES_WITH_NAMES:
            axis.set(xticks=[], yticks=[])
        save_figure(figure, folder / "confusion_matrix.png")
        super().write_evaluation(evaluation, folder)

    def draw(self, evaluation: ClassificationEvaluation, folder: Path) -> None:
        """Draw predictions.png: errors of decreasing confidence, then correct predictions of increasing confidence."""
        classes = [printable(name) for name in self.classes]
        is_correct, confidence = evaluation.labels == evaluation.predicted, evaluation.confidence
        shown = np.lexsort((np.where(is_correct, 1, -1) * confidence, is_correct))[:MAX_SHOWN]
        num_rows = -(-len(shown) // COLUMNS)
        figure = new_figure(1.5 * COLUMNS, 0.5 + 1.95 * num_rows)
        figure.suptitle(evaluation.counts, fontsize=13)
        for number, i in enumerate(shown, 1):
            axis = figure.add_subplot(num_rows, COLUMNS, number)
            axis.set_axis_off()
            image, _ = self.images.load(evaluation.measures[i][0])
            prediction = f"{classes[evaluation.predicted[i]]} {confidence[i]:.2f}"
            truth = "" if is_correct[i] else f"\nis {classes[evaluation.labels[i]]}"
            color = CORRECT_COLOR if is_correct[i] else WRONG_COLOR
            axis.imshow(np.asarray(image), cmap="gray" if image.mode == "L" else None, vmin=0, vmax=255)
            axis.set_title(prediction + truth, fontsize=9, color=color, parse_math=False)  # names may contain $
        save_figure(figure, folder / SHEET)

    def write(
        self, prediction: Prediction, image: Image, number: int, stem: Path, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        best = prediction.top(options["top"])
        return {"top": [{"class": name, "probability": round(probability, 6)} for name, probability in best]}

    def describe(self, row: Mapping[str, Any]) -> str:
        names = (f"{each['class']} {each['probability']:.3f}" for each in row["top"])
        return "  ".join(f"{name:<18}" for name in names).rstrip()


def open_splits_of(card: ClassifierCard, data: str, root: str | None = None) -> Splits:
    """Open a dataset with the splits of a training run. root: by default that of the run, if it is its dataset.

    Raises InputError if it is the dataset of the run, but other images would be held out.
    """
    recipe, is_own = card.recipe, _is_same_dataset(data, card.recipe.get("data"))
    root = root or (recipe.get("data_root") if is_own else None)
    splits = open_splits(data, root=root, **_division_of(card))
    if is_own and card.held_out and splits.held_out != card.held_out:
        raise InputError(
            f"data must have the same images as when the run started, got '{data}' with others, of "
            "which it may have trained on any; restore them, or give a folder of new images"
        )
    return splits


def _division_of(card: ClassifierCard) -> dict[str, Any]:
    """Return the arguments by which `open_splits` divides a dataset as in the training run."""
    return {name: card.recipe[name] for name in ("validation_share", "seed") if name in card.recipe}


def _is_same_dataset(data: str, other: str | None) -> bool:
    """Whether two names or paths of datasets are the same. A dataset that was moved is another one."""
    if not other or data == other or other == "digits":
        return data == other
    return os.path.realpath(data) == os.path.realpath(other)
