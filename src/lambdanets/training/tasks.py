"""The registry of tasks. A new task needs an entry in TASKS, its packages and a command."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lambdanets.errors import InputError
from lambdanets.records import parse_json
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.segmentation.recipe import SegmentationRecipe

if TYPE_CHECKING:
    from lambdanets.training.task import Task


RECIPE = "recipe.json"  # of a run


class TaskEntry(NamedTuple):
    """An entry of the registry.

    implementation: "module:class" of the Task, which is imported on first use, so that --help does not import PyTorch
    and Lightning. recipe_package: package with the recipe files. command: the training command.
    """

    recipe_class: type[TrainingRecipe]
    implementation: str
    recipe_package: str
    command: str


TASKS = {
    "classification": TaskEntry(
        ClassificationRecipe,
        "lambdanets.training.classification.task:ClassificationTask",
        "lambdanets.recipes",
        "train",
    ),
    "detection": TaskEntry(
        DetectionRecipe,
        "lambdanets.training.detection.task:DetectionTask",
        "lambdanets.recipes.detection",
        "detect train",
    ),
    "segmentation": TaskEntry(
        SegmentationRecipe,
        "lambdanets.training.segmentation.task:SegmentationTask",
        "lambdanets.recipes.segmentation",
        "segment train",
    ),
}


def task_class(recipe: TrainingRecipe) -> "type[Task]":
    """Return the Task class for a recipe."""
    module, _, name = TASKS[recipe.task].implementation.partition(":")
    return getattr(importlib.import_module(module), name)


def read_recipe(path: Path) -> TrainingRecipe:
    """Read a recipe of any task from a JSON file. Raises InputError if the file is not a valid recipe."""
    fields = parse_json(path.read_bytes(), dict[str, Any], f"{path} is not a valid recipe")
    name = fields.get("task", "classification")
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"task in {path} must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name].recipe_class.from_fields(fields, str(path))
