"""Keyword spotting: a task of one's own, with 1-D lambda layers. Recipe, network, evaluation, and the task itself."""

import wave
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from tones import KEYWORDS, Recordings, read_wav
from torch import Tensor, nn

import lambdanets as ln
from lambdanets.data.batches import Batch, Batches
from lambdanets.data.images import UnreadableImage
from lambdanets.inference.model_card import ModelCard
from lambdanets.inference.predictor import Evaluation, Predictor
from lambdanets.records import Fraction, record
from lambdanets.registry import TaskEntry
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.task import Task


@record
class KeywordRecipe(TrainingRecipe):
    """Hyperparameters of keyword spotting."""

    task: ClassVar[str] = "keywords"

    data: str = "tones"
    model: str = "keyword_network"
    training_recordings: int = 400
    """Number of recordings to train on."""
    noise: Fraction = 0.1
    """Standard deviation of the noise that is added in training."""


@record
class KeywordCard(ModelCard):
    """What is stored with the weights."""

    task: ClassVar[str] = "keywords"


class KeywordNetwork(nn.Module):
    """Recordings (b, 1, length) to logits (b, keywords). Arguments are the recipe's model_options."""

    def __init__(self, num_classes: int, width: int = 32, scope: int = 15) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, width, 32, stride=16), nn.BatchNorm1d(width), nn.ReLU())
        self.layers = nn.Sequential(
            ln.LambdaLayer1d(width, scope=scope),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            ln.LambdaLayer1d(width, scope=scope),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, num_classes)

    def forward(self, recordings: Tensor) -> Tensor:
        return self.head(self.layers(self.stem(recordings)).amax(2))

    def get_classifier(self) -> nn.Module:
        """The layer that is replaced for other keywords, as in timm's models."""
        return self.head


def transform(recording: Tensor, label: int, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return a recording and its label. A `Batch` has lists of them: `images` and `targets`."""
    noisy = recording + noise * torch.randn(recording.shape)  # seeded by the seed, the epoch and the index
    return noisy, torch.tensor(label)


class KeywordSpotter(Predictor):
    """A trained network. `lambdanets.load` and `lambdanets.evaluate` return and evaluate it, once it is registered."""

    card_type = KeywordCard

    @staticmethod
    def build(architecture: Any, num_classes: int) -> nn.Module:
        return KeywordNetwork(num_classes, **architecture.model_options)

    def infer(self, recordings: Any, *, batch_size: int = 1) -> list[str]:
        """Return the keyword of each recording, float32 (1, length)."""
        logits = self.outputs(torch.stack([*recordings]))
        return [self.classes[index] for index in logits.argmax(1).tolist()]

    @staticmethod
    def accepts(name: str) -> bool:
        return name.lower().endswith(".wav")

    @staticmethod
    def read(path: Path, **options: Any) -> Tensor:
        try:
            return read_wav(path)
        except (OSError, EOFError, wave.Error) as error:
            raise UnreadableImage(str(path), str(error)) from error

    def write(self, prediction: str, image: Any, number: int, stem: Path, options: Any) -> dict[str, Any]:
        return {"keyword": prediction}

    def evaluator(self) -> Self:
        return replace(self, images=Recordings(100, seed=1), source="synthetic tones")

    def batches(self, **options: Any) -> Batches:
        return Batches(self.images, transform, **options)

    def measure(self, batch: Batch) -> list[Any]:
        """Return (index, whether the keyword is correct) of each recording."""
        if not batch.images:  # none could be read
            return []
        logits = self.outputs(torch.stack(batch.images))
        correct = logits.argmax(1).cpu() == torch.stack(batch.targets).cpu()
        return list(zip(batch.indices.tolist(), correct.tolist(), strict=True))

    def score(self, measures: list[Any]) -> Evaluation:
        scores = {"accuracy": sum(correct for _, correct in measures) / len(measures)}
        return Evaluation(
            scores=scores,
            metrics=scores,
            lines=[f"accuracy {scores['accuracy']:.4f}"],
            counts=f"{len(measures)} recordings",
        )


class KeywordTask(Task):
    """Keyword spotting."""

    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    VALIDATION_METRICS: ClassVar[tuple[str, ...]] = ("accuracy",)
    BEST_METRIC: ClassVar[str] = "accuracy"

    def __init__(self, recipe: KeywordRecipe) -> None:
        super().__init__(recipe)
        self.training = Recordings(recipe.training_recordings, seed=0)
        self.validation = Recordings(100, seed=1)
        self.classes, self.source = tuple(KEYWORDS), "synthetic tones"
        self.fingerprint = f"tones {recipe.training_recordings}"  # of files: a hash of classes, names and labels

    def batches(self, **options: Any) -> Batches:
        return Batches(self.training, partial(transform, noise=self.recipe.noise), **options)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits, labels = self.model(torch.stack(batch.images)), torch.stack(batch.targets)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).sum()}


ENTRY = TaskEntry(
    recipe="keyword_task:KeywordRecipe",
    implementation="keyword_task:KeywordTask",
    predictor="keyword_task:KeywordSpotter",
)
