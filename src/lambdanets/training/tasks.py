"""The registry of tasks. CONTRIBUTING.md lists what else a new task needs.

Tasks of the lab (`lambdanets_lab`) are found by name like the others, and imported only when they are used.
"""

import dataclasses
import importlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambdanets.errors import InputError
from lambdanets.records import parse_json
from lambdanets.training.recipe import TrainingRecipe

if TYPE_CHECKING:
    from lambdanets.training.task import Task


RECIPE = "recipe.json"  # of a run


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """An entry of the registry. Names are "module:name", imported on first use, so that --help is fast.

    recipe: the recipe's class. implementation: the Task. recipe_package: package with the recipe files. command: the
    training command; tasks with the same command extend the recipe of the first. quicktest: `quicktest_recipe`.
    """

    recipe: str
    implementation: str
    recipe_package: str
    command: str
    quicktest: str = ""

    @cached_property
    def recipe_class(self) -> type[TrainingRecipe]:
        """The recipe's class."""
        return find(self.recipe)


TASKS = {
    "classification": TaskEntry(
        "lambdanets.training.classification.recipe:ClassificationRecipe",
        "lambdanets.training.classification.task:ClassificationTask",
        "lambdanets.recipes",
        "train",
        "lambdanets.training.classification.quicktest:quicktest_recipe",
    ),
    "student": TaskEntry(
        "lambdanets_lab.pseudo.recipe:StudentRecipe",
        "lambdanets_lab.pseudo.student:StudentTask",
        "lambdanets_lab.recipes",
        "train",
        "lambdanets_lab.pseudo.student:quicktest_recipe",
    ),
    "detection": TaskEntry(
        "lambdanets.training.detection.recipe:DetectionRecipe",
        "lambdanets.training.detection.task:DetectionTask",
        "lambdanets.recipes.detection",
        "detect train",
        "lambdanets.training.detection.quicktest:quicktest_recipe",
    ),
    "segmentation": TaskEntry(
        "lambdanets.training.segmentation.recipe:SegmentationRecipe",
        "lambdanets.training.segmentation.task:SegmentationTask",
        "lambdanets.recipes.segmentation",
        "segment train",
        "lambdanets.training.segmentation.quicktest:quicktest_recipe",
    ),
}


def find(name: str) -> Any:
    """Import "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def task_class(recipe: TrainingRecipe) -> "type[Task]":
    """Return the Task class for a recipe."""
    return find(TASKS[recipe.task].implementation)


def extended_recipe(recipe: TrainingRecipe, options: Iterable[str]) -> TrainingRecipe:
    """Return the recipe as one of the task of its command that has the fields `options`, such as pseudo_labels."""
    for entry in TASKS.values():
        if entry.command == TASKS[recipe.task].command and issubclass(entry.recipe_class, type(recipe)):
            names = {field.name for field in dataclasses.fields(entry.recipe_class)} - vars(recipe).keys()
            if not names.isdisjoint(options):
                return entry.recipe_class(**vars(recipe))
    return recipe


def read_recipe(path: Path) -> TrainingRecipe:
    """Read a recipe of any task from a JSON file. Raises InputError if the file is not a valid recipe."""
    fields = parse_json(path.read_bytes(), dict[str, Any], f"{path} is not a valid recipe")
    name = fields.get("task", "classification")
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"task in {path} must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name].recipe_class.from_fields(fields, str(path))
