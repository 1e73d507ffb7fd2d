"""Training recipes: one Python file per recipe, with data, model and result in its docstring."""

import importlib
import pkgutil
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lambdanets.errors import InputError, check_choice, one_line
from lambdanets.registry import RECIPE_PACKAGES
from lambdanets.training.recipe import TrainingRecipe


def list_recipes(task: str | None = None) -> dict[str, str]:
    """Return the names of the recipes of a task, or of all, with the first line of each docstring."""
    return {
        name: (module.__doc__ or "").splitlines()[0]
        for name, module in _modules().items()
        if task is None or module.recipe.task == task
    }


def list_variants(name: str) -> list[str]:
    """Return the names of the variants of a recipe, from the dict `recipes` in its file."""
    return [f"{name}_{suffix}" for suffix in getattr(_modules()[name], "recipes", {})]


def find_recipe(name: str) -> Any:
    """Return a recipe or variant by name, or the `recipe` that is assigned in a Python file."""
    if name.lower().endswith(".py"):
        return _run_file(name)
    modules = _modules()
    recipes: dict[str, Any] = {}
    for each, module in modules.items():
        recipes |= {f"{each}_{suffix}": recipe for suffix, recipe in getattr(module, "recipes", {}).items()}
        recipes[each] = module.recipe
    check_choice("recipe", name, modules, recipes)
    return recipes[name]


def _run_file(name: str) -> TrainingRecipe:
    expected = "assign recipe = ClassificationRecipe(...), or a recipe of another task"
    if not Path(name).is_file():
        raise InputError(f"{name} must be a Python file that has to {expected}, got no file")
    folder = str(Path(name).resolve().parent)  # the file may import modules beside it, as a script does
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        recipe = runpy.run_path(name).get("recipe")
    except (Exception, SystemExit) as error:  # the user's file may raise any error
        raise InputError(f"{name} cannot be run: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(recipe, TrainingRecipe):
        raise InputError(f"{name} must {expected}, got {type(recipe).__name__}")
    return recipe


def _modules() -> dict[str, ModuleType]:
    names = {
        module.name.rpartition(".")[2]: module.name
        for package in RECIPE_PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    }
    return {name: importlib.import_module(module) for name, module in sorted(names.items())}
