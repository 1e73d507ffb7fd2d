"""The task of a recipe, and recipes of any task in JSON files."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambdanets.errors import InputError
from lambdanets.records import parse_json
from lambdanets.registry import TASKS, find
from lambdanets.training.recipe import TrainingRecipe

if TYPE_CHECKING:
    from lambdanets.training.task import Task


RECIPE = "recipe.json"  # of a run


def task_class(recipe: TrainingRecipe) -> "type[Task]":
    """Return the Task class for a recipe."""
    return find(TASKS[recipe.task].implementation)


def extended_recipe(recipe: TrainingRecipe, options: Iterable[str]) -> TrainingRecipe:
    """Return the recipe as one of a task that extends its task by the fields `options`, such as pseudo_labels."""
    for entry in TASKS.values():
        if issubclass(entry.recipe_class, type(recipe)):
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
