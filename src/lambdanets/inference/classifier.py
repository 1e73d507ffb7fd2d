"""Trained classifiers and their predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL.Image import Image
from pydantic import PositiveInt
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.inference.options import ClassifierOptions
from lambdanets.inference.predictor import Predictor
from lambdanets.models import create_model
from lambdanets.records import check

if TYPE_CHECKING:
    from lambdanets.inference.classification_evaluation import ClassificationEvaluator


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
        """Return names and probabilities of the `count` most probable classes, in descending order."""
        check("count", count, PositiveInt)
        best = self.probabilities.topk(min(count, len(self.classes)))
        return [(self.classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name} {probability:.3f}' for name, probability in self.top(3))})"


class Classifier(Predictor):
    """A trained classifier, which `lambdanets.load` returns. Its predictions are `Prediction`."""

    card_type = ClassifierCard
    default_batch_size = 32

    card: ClassifierCard

    @staticmethod
    def build(architecture: Any, num_classes: int, **training_options: Any) -> nn.Module:
        options = architecture.checked_options() | training_options
        channels = architecture.preprocessing.channels
        return create_model(architecture.model, num_classes=num_classes, in_chans=channels, **options)

    def infer(self, images: Sequence[Image], *, batch_size: int = 1) -> list[Prediction]:
        preprocessing = self.card.preprocessing
        transform = preprocessing.transform()
        batch = torch.stack([transform(image.convert(preprocessing.mode)) for image in images])
        return [Prediction(self.classes, probabilities) for probabilities in self.probabilities(batch)]

    def probabilities(self, images: Tensor) -> Tensor:
        """Return class probabilities (b, classes) of preprocessed images (b, c, h, w), float32 on the CPU.

        Raises InputError if they are NaN or inf, for example because the weights are damaged.
        """
        return self.logits(images).softmax(dim=1)

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Return the outputs for preprocessed images as `probabilities` does, before the softmax."""
        logits = self.outputs(images).float().cpu()
        if not logits.isfinite().all():
            raise InputError(f"the outputs of {self.card.model} must be finite, got NaN: its weights are damaged")
        return logits

    def evaluator(self, data: str | None = None, *, data_root: str | None = None) -> "ClassificationEvaluator":
        from lambdanets.inference.classification_evaluation import open_evaluator  # it imports the formats of datasets

        return open_evaluator(self, data, data_root)

    def write(
        self, prediction: Prediction, image: Image, path: Path, number: int, out: Path, options: ClassifierOptions
    ) -> dict[str, Any]:
        best = prediction.top(options.top)
        return {"top": [{"class": name, "probability": round(probability, 6)} for name, probability in best]}

    def describe(self, row: Mapping[str, Any]) -> str:
        names = (f"{each['class']} {each['probability']:.3f}" for each in row["top"])
        return "  ".join(f"{name:<18}" for name in names).rstrip()
