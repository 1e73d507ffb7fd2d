"""Follows the steps to add a task of CONTRIBUTING.md."""

from pathlib import Path

from lambdanets import registry
from lambdanets.training import run

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")

TASK = {
    "recipe.py": """
import dataclasses
from typing import ClassVar

from lambdanets.training.recipe import TrainingRecipe


@dataclasses.dataclass(frozen=True)
class EchoRecipe(TrainingRecipe):
    task: ClassVar[str] = "echo"
""",
    "task.py": """
import numpy as np
import torch
from torch import nn

from lambdanets.data.batches import Batches
from lambdanets.data.datasets import open_splits
from lambdanets.inference.evaluator import Evaluation, Evaluator
from lambdanets.inference.model_card import ModelCard
from lambdanets.training.memory import MemoryProbe
from lambdanets.training.report import Result
from lambdanets.training.task import Task


def load(images, index):
    pixels = torch.from_numpy(np.asarray(images.load(index)[0])).float() / 255
    return pixels.flatten()


class Batch:
    def __init__(self, samples):
        self.images = torch.stack([sample.content for sample in samples])
        self.unreadable, self.step_images = [], samples[0].step_images


def make_batches(images, training, batch_slice):
    options = {"batch_size": 64, "seed": 0, "workers": 0, "batch_slice": batch_slice}
    return Batches(images, load, Batch, training=training, **options)


class Probe(MemoryProbe):
    size = "8 x 8"

    def build(self):
        return nn.Linear(64, 64)

    def loss(self, model, batch_size, device):
        return model(torch.empty(batch_size, 64, device=device)).sum()


def squared_error(model, batch):
    return (model(batch.images) - batch.images).square().sum(1)


class EchoEvaluation(Evaluation):
    def __init__(self, losses):
        self.loss, self.unreadable = sum(losses) / len(losses), []

    def metrics(self):
        return {"loss": self.loss, "gain": -self.loss}

    def summary(self):
        return f"val loss {self.loss:.3f}"


class EchoEvaluator(Evaluator):
    def batches(self, batch_size, workers=0, batch_slice=None):
        return make_batches(self.images, False, batch_slice)

    def measure(self, batch):
        return list(enumerate(squared_error(self.predictor, batch).tolist()))

    def score(self, measures, unreadable):
        return EchoEvaluation([loss for _, loss in measures])


class EchoCard(ModelCard):
    task = "echo"

    def with_data(self, recipe):
        return self

    def without_data(self):
        return self


class EchoTask(Task):
    TRAINING_METRICS, VALIDATION_METRICS, BEST_METRIC = ("loss",), ("loss", "gain"), "gain"
    PANELS = (("loss", ("loss",)),)
    RESULT = Result
    classes, source, fingerprint = ("none",), "digits", "digits"

    def __init__(self, recipe):
        self.recipe, self.model = recipe, nn.Linear(64, 64)
        self.splits = open_splits("digits")
        self.training_images, self.validation_images = len(self.splits.train), len(self.splits.validation)

    @classmethod
    def open(cls, recipe, world, resumed):
        return cls(recipe)

    def probe(self):
        return Probe(self.recipe)

    def training_batches(self, recipe, batch_slice):
        return make_batches(self.splits.train, True, batch_slice)

    def validation_batches(self, recipe, batch_slice):
        return self.evaluator(recipe).batches(64, batch_slice=batch_slice)

    def num_images(self, batch):
        return len(batch.images)

    def inputs(self, batch):
        return (batch.images,)

    def losses(self, batch, recipe):
        return {"loss": squared_error(self.model, batch).sum()}

    def card(self, recipe):
        return EchoCard(model="resnet18", classes=("none",), stretch=False)

    def evaluator(self, recipe):
        return EchoEvaluator(self.model, self.splits.validation)

    def finish(self, recipe, folder, log):
        return {"summary": [], "unreadable": []}
""",
}


def test_new_task_needs_one_package_and_one_entry(tmp_path, monkeypatch):
    steps = PAGE.partition("## To add a task\n")[2].partition("\n## ")[0]
    assert "TrainingRecipe" in steps
    assert "registry.py" in steps
    (tmp_path / "echo_task").mkdir()
    for name, text in TASK.items():
        (tmp_path / "echo_task" / name).write_text(text.lstrip())
    monkeypatch.syspath_prepend(tmp_path)
    entry = registry.TaskEntry("echo_task.recipe:EchoRecipe", "echo_task.task:EchoTask", "")
    monkeypatch.setitem(registry.TASKS, "echo", entry)
    recipe = entry.recipe_class(data="digits", model="echo", epochs=2, warmup_epochs=0, learning_rate=0.001)
    result = run.start(recipe, tmp_path / "run")
    assert run.start(recipe, tmp_path / "run") == result
    assert result["epochs"] == 2
    assert {"weights.safetensors", "metrics.csv"} < {path.name for path in (tmp_path / "run").iterdir()}
