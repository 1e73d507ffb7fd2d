"""Follows the steps to add a task of CONTRIBUTING.md in a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def package(tmp_path):
    """A copy of src/, without caches."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return tmp_path / "src/lambdanets"


def add_line(path, before, line):
    """Insert a line before the first occurrence of the text `before`."""
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, line + before, 1), encoding="utf-8")


def run(package, *arguments):
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, *arguments]
    process = subprocess.run(
        command, env=environment, cwd=package.parents[1], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def read_steps(title):
    return PAGE.partition(f"## To add {title}\n")[2].partition("\n## ")[0]


TASK = {
    "training/echo/recipe.py": """
import dataclasses
from typing import ClassVar

from lambdanets.training.recipe import TrainingRecipe


@dataclasses.dataclass(frozen=True)
class EchoRecipe(TrainingRecipe):
    task: ClassVar[str] = "echo"
""",
    "training/echo/task.py": """
import numpy as np
import torch
from torch import nn

from lambdanets.data.batches import Batches
from lambdanets.data.datasets import open_splits
from lambdanets.inference.model_card import ModelCard
from lambdanets.training.memory import MemoryProbe
from lambdanets.training.module import TrainingModule
from lambdanets.training.report import Result
from lambdanets.training.task import Task


def load(images, index):
    pixels = torch.from_numpy(np.asarray(images.load(index)[0])).float() / 255
    return pixels.flatten()


class Batch:
    def __init__(self, samples):
        self.images = torch.stack([sample.content for sample in samples])
        self.unreadable, self.step_images = [], samples[0].step_images


class Probe(MemoryProbe):
    size = "8 x 8"

    def build(self):
        return nn.Linear(64, 64)

    def loss(self, model, batch_size, device):
        return model(torch.empty(batch_size, 64, device=device)).sum()


class Module(TrainingModule):
    SUMS = ("loss",)

    def num_images(self, batch):
        return len(batch.images)

    def sums(self, batch):
        return {"loss": (self.model(batch.images) - batch.images).square().sum()}

    def inputs(self, batch):
        return (batch.images,)

    def validation_step(self, batch, batch_idx):
        self.validation_metrics = {"loss": float(self.sums(batch)["loss"]) / len(batch.images)}

    def on_validation_epoch_end(self):
        self.validation_metrics["gain"] = -self.validation_metrics["loss"]
        self.log("gain", self.validation_metrics["gain"], logger=False)

    def format_validation_metrics(self):
        return f"val loss {self.validation_metrics['loss']:.3f}"


class EchoCard(ModelCard):
    task = "echo"

    def with_data(self, recipe):
        return self

    def without_data(self):
        return self


class EchoTask(Task):
    METRICS, PANELS, BEST_METRIC, RESULT = ("loss", "gain"), (("loss", ("loss",)),), "gain", Result
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

    def batches(self, recipe, batch_slice):
        sets = (self.splits.train, True), (self.splits.validation, False)
        return tuple(
            Batches(images, load, Batch, batch_size=64, seed=0, training=training, workers=0, batch_slice=batch_slice)
            for images, training in sets
        )

    def card(self, recipe):
        return EchoCard("resnet18", ("none",), {}, False)

    def module(self, recipe, steps_per_epoch, batch_slice):
        return Module(self.model, recipe, steps_per_epoch, self.description(recipe), batch_slice)

    def finish(self, recipe, folder, log):
        return {"unreadable": []}
""",
}


def test_new_task_needs_one_package_and_one_entry(package, tmp_path):
    steps = read_steps("a task")
    assert "TrainingRecipe" in steps
    assert "training/tasks.py" in steps
    for name, text in TASK.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text.lstrip())
    (package / "training/echo/__init__.py").write_text("")
    tasks = package / "training/tasks.py"
    add_line(
        tasks,
        "\n\ndef task_class",
        'TASKS["echo"] = TaskEntry(EchoRecipe, "lambdanets.training.echo.task:EchoTask", "", "")\n',
    )
    add_line(tasks, "from lambdanets.training.recipe", "from lambdanets.training.echo.recipe import EchoRecipe\n")
    script = f"""
from lambdanets.training import run
from lambdanets.training.echo.recipe import EchoRecipe
from pathlib import Path
folder = Path({str(tmp_path / "run")!r})
recipe = EchoRecipe(data="digits", model="echo", epochs=2, warmup_epochs=0, learning_rate=0.001)
result = run.start(recipe, folder)
assert run.start(recipe, folder) == result
print(result["epochs"], sorted(path.name for path in folder.iterdir() if path.is_file()))
"""
    output = run(package, "-c", script).splitlines()[-1]
    assert output.startswith("2 ")
    assert "weights.safetensors" in output
    assert "metrics.csv" in output
