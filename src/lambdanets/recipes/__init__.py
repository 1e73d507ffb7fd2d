"""Training recipes: one Python file per recipe, with data, model and result in its docstring."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import TypeVar, overload

from lambdanets.errors import InputError, nearest_hint, one_line
from lambdanets.registry import TASKS
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.recipe import TrainingRecipe

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)


def list_recipes(recipe_class: type[TrainingRecipe] = ClassificationRecipe) -> dict[str, str]:
    """Return the names of a task's recipes, with the first line of each docstring."""
    return {name: (module.__doc__ or "").splitlines()[0] for name, module in _modules(recipe_class).items()}


def list_variants(name: str, recipe_class: type[TrainingRecipe] = ClassificationRecipe) -> list[str]:
    """Return the names of the variants of a recipe, from the dict `recipes` in its file."""
    return [f"{name}_{suffix}" for suffix in getattr(_modules(recipe_class)[name], "recipes", {})]


@overload
def find_recipe(name: str) -> ClassificationRecipe: ...
@overload
def find_recipe(name: str, recipe_class: type[AnyRecipe]) -> AnyRecipe: ...
def find_recipe(name: str, recipe_class: type[TrainingRecipe] = ClassificationRecipe) -> TrainingRecipe:
    """Return a recipe or variant by name, or the `recipe` that is assigned in a Python file."""
    if name.lower().endswith(".py"):
        if not Path(name).is_file():
            expected = f"a Python file that assigns recipe = {recipe_class.__name__}(...)"
            raise InputError(f"{name} must be {expected}, got no file")
        import runpy

        try:
            recipe = runpy.run_path(name).get("recipe")
        except (Exception, SystemExit) as error:  # the user's file may raise any error
            raise InputError(f"{name} cannot be run: {type(error).__name__}: {one_line(error)}") from error
    else:
        modules = _modules(recipe_class)
        variants = {variant: module for module in modules for variant in list_variants(module, recipe_class)}
        if name not in modules and name not in variants:
            known = [*modules, *variants]
            raise InputError(f"recipe must be one of {', '.join(modules)}, got {name!r}{nearest_hint(name, known)}")
        module = modules[variants.get(name, name)]
        recipe = module.recipe if name in modules else module.recipes[name.removeprefix(f"{variants[name]}_")]
    if isinstance(recipe, TrainingRecipe) and not isinstance(recipe, recipe_class):
        raise InputError(
            f"{name} must be a {recipe_class.task} recipe, got a {recipe.task} recipe; "
            f"train with: lambdanets {TASKS[recipe.task].command} {name}"
        )
    if not isinstance(recipe, recipe_class):
        raise InputError(f"{name} must assign recipe = {recipe_class.__name__}(...), got {type(recipe).__name__}")
    return recipe


def _modules(recipe_class: type[TrainingRecipe]) -> dict[str, ModuleType]:
    command = TASKS[recipe_class.task].command
    packages = [importlib.import_module(each.recipe_package) for each in TASKS.values() if each.command == command]
    modules = {
        name: f"{package.__name__}.{name}"
        for package in packages
        for _, name, is_package in pkgutil.iter_modules(package.__path__)
        if not is_package
    }
    return {name: importlib.import_module(module) for name, module in sorted(modules.items())}
