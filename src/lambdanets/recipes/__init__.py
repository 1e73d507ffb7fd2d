"""Recipes: a short Python file for each set-up, its promise on top, changing fields of a recipe's dataclass.

Those of classification are here, those of detection in `detection/`.
"""

import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import TypeVar, overload

from lambdanets.errors import InputError, nearest, one_line
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.recipe import Recipe, TrainingRecipe

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)
COMMANDS = {"classification": "train", "detection": "detect train"}  # by task, what trains by a recipe of it
_PACKAGES: dict[type[TrainingRecipe], str] = {Recipe: __name__, DetectionRecipe: f"{__name__}.detection"}


def list_recipes(kind: type[TrainingRecipe] = Recipe) -> dict[str, str]:
    """Names of the recipes of a kind that come with the package, and the first line of each one's promise."""
    return {name: (module.__doc__ or "").splitlines()[0] for name, module in _modules(kind).items()}


def list_variants(name: str, kind: type[TrainingRecipe] = Recipe) -> list[str]:
    """Names of the recipes that a file of that name has beside its main one."""
    return [f"{name}_{suffix}" for suffix in getattr(_modules(kind)[name], "recipes", {})]


@overload
def find_recipe(name: str) -> Recipe: ...
@overload
def find_recipe(name: str, kind: type[AnyRecipe]) -> AnyRecipe: ...
def find_recipe(name: str, kind: type[TrainingRecipe] = Recipe) -> TrainingRecipe:
    """The recipe of that name, or the one in a Python file that assigns `recipe`."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise InputError(
                f"{name} does not exist; expected a Python file that assigns recipe = {kind.__name__}(...)"
            )
        import runpy

        try:
            recipe = runpy.run_path(name).get("recipe")
        except (Exception, SystemExit) as error:  # whatever the person's file raises
            reason = one_line(error)
            unknown = re.search(r"unexpected keyword argument '(\w+)'", reason)
            advice = nearest(unknown[1], [field.name for field in dataclasses.fields(kind)]) if unknown else ""
            raise InputError(f"{name} cannot be run: {type(error).__name__}: {reason}{advice}") from error
    else:
        modules = _modules(kind)
        variants = {variant: module for module in modules for variant in list_variants(module, kind)}
        if name not in modules and name not in variants:
            known = [*modules, *variants]
            raise InputError(f"there is no recipe named {name!r}, only {', '.join(modules)}{nearest(name, known)}")
        module = modules[variants.get(name, name)]
        recipe = module.recipe if name in modules else module.recipes[name.removeprefix(f"{variants[name]}_")]
    if isinstance(recipe, TrainingRecipe) and not isinstance(recipe, kind):
        raise InputError(
            f"{name} must hold a recipe of {kind.task}, got one of {recipe.task}; "
            f"train by it with: lambdanets {COMMANDS[type(recipe).task]} {name}"
        )
    if not isinstance(recipe, kind):
        raise InputError(f"{name} must assign recipe = {kind.__name__}(...), got {type(recipe).__name__}")
    return recipe


def _modules(kind: type[TrainingRecipe]) -> dict[str, ModuleType]:
    package = importlib.import_module(_PACKAGES[kind])
    names = sorted(name for _, name, is_package in pkgutil.iter_modules(package.__path__) if not is_package)
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
