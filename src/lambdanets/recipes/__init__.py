"""Training recipes, one Python file each, with data, model and result in the docstring; detection in `detection/`."""

import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import TypeVar, overload

from lambdanets.errors import InputError, nearest, one_line
from lambdanets.training.recipe import Recipe, TrainingRecipe
from lambdanets.training.tasks import TASKS

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)


def list_recipes(kind: type[TrainingRecipe] = Recipe) -> dict[str, str]:
    """The names of a task's recipes, and the first line of each docstring."""
    return {name: (module.__doc__ or "").splitlines()[0] for name, module in _modules(kind).items()}


def list_variants(name: str, kind: type[TrainingRecipe] = Recipe) -> list[str]:
    """Names of the variants of a recipe, from the dict `recipes` in its file."""
    return [f"{name}_{suffix}" for suffix in getattr(_modules(kind)[name], "recipes", {})]


@overload
def find_recipe(name: str) -> Recipe: ...
@overload
def find_recipe(name: str, kind: type[AnyRecipe]) -> AnyRecipe: ...
def find_recipe(name: str, kind: type[TrainingRecipe] = Recipe) -> TrainingRecipe:
    """The recipe or variant of this name, or the one in a Python file that assigns `recipe`."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise InputError(f"{name} must be a Python file that assigns recipe = {kind.__name__}(...), got no file")
        import runpy

        try:
            recipe = runpy.run_path(name).get("recipe")
        except (Exception, SystemExit) as error:  # the user's file may raise anything
            reason = one_line(error)
            unknown = re.search(r"unexpected keyword argument '(\w+)'", reason)
            advice = nearest(unknown[1], [field.name for field in dataclasses.fields(kind)]) if unknown else ""
            raise InputError(f"{name} cannot be run: {type(error).__name__}: {reason}{advice}") from error
    else:
        modules = _modules(kind)
        variants = {variant: module for module in modules for variant in list_variants(module, kind)}
        if name not in modules and name not in variants:
            known = [*modules, *variants]
            raise InputError(f"recipe must be one of {', '.join(modules)}, got {name!r}{nearest(name, known)}")
        module = modules[variants.get(name, name)]
        recipe = module.recipe if name in modules else module.recipes[name.removeprefix(f"{variants[name]}_")]
    if isinstance(recipe, TrainingRecipe) and not isinstance(recipe, kind):
        raise InputError(
            f"{name} must be a {kind.task} recipe, got a {recipe.task} recipe; "
            f"train with: lambdanets {TASKS[recipe.task].command} {name}"
        )
    if not isinstance(recipe, kind):
        raise InputError(f"{name} must assign recipe = {kind.__name__}(...), got {type(recipe).__name__}")
    return recipe


def _modules(kind: type[TrainingRecipe]) -> dict[str, ModuleType]:
    package = importlib.import_module(TASKS[kind.task].recipes)
    names = sorted(name for _, name, is_package in pkgutil.iter_modules(package.__path__) if not is_package)
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
