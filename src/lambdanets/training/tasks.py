"""The registry of tasks: a new task is one entry of TASKS, its packages, and a command."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lambdanets.errors import InputError
from lambdanets.records import parse_json
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.recipe import Recipe, TrainingRecipe

if TYPE_CHECKING:
    from lambdanets.training.task import Task


class TaskEntry(NamedTuple):
    """A task: its recipe class, "module:class" of its Task, the package of its recipe files, and its command.

    The Task is imported on first use, so that --help imports neither PyTorch nor Lightning.
    """

    recipe: type[TrainingRecipe]
    implementation: str
    recipes: str
    command: str


TASKS = {
    "classification": TaskEntry(
        Recipe, "lambdanets.training.classification.task:ClassificationTask", "lambdanets.recipes", "train"
    ),
    "detection": TaskEntry(
        DetectionRecipe,
        "lambdanets.training.detection.task:DetectionTask",
        "lambdanets.recipes.detection",
        "detect train",
    ),
}


def task_of(recipe: TrainingRecipe) -> "type[Task]":
    """The Task that trains by a recipe."""
    module, _, name = TASKS[recipe.task].implementation.partition(":")
    return getattr(importlib.import_module(module), name)


def read_recipe(path: Path) -> TrainingRecipe:
    """Read a recipe of any task from a JSON file. Raises InputError for any other file."""
    fields = parse_json(path.read_bytes(), dict[str, Any], f"{path} is not a valid recipe")
    name = fields.get("task", "classification")
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"{path} must have a task that is one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name].recipe.from_fields(fields, str(path))
