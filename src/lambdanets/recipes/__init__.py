"""Recipes: a short Python file for each set-up, its promise on top, changing fields of `training.recipe.Recipe`."""

import dataclasses
import importlib
import pkgutil
import re
import runpy
from pathlib import Path
from types import ModuleType

from lambdanets.errors import InputError, nearest
from lambdanets.training.recipe import Recipe


def list_recipes() -> dict[str, str]:
    """Names of the recipes that come with the package, and the first line of each one's promise."""
    return {name: (module.__doc__ or "").splitlines()[0] for name, module in _modules().items()}


def list_variants(name: str) -> list[str]:
    """Names of the recipes that a file of that name has beside its main one."""
    return [f"{name}_{suffix}" for suffix in getattr(_modules()[name], "recipes", {})]


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or the one in a Python file that assigns `recipe = Recipe(...)`."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise InputError(f"{name} does not exist; expected a Python file that assigns recipe = Recipe(...)")
        try:
            recipe = runpy.run_path(name).get("recipe")
        except (Exception, SystemExit) as error:  # whatever the person's file raises
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            advice = nearest(unknown[1], [field.name for field in dataclasses.fields(Recipe)]) if unknown else ""
            raise InputError(f"{name} cannot be run: {type(error).__name__}: {error}{advice}") from error
    else:
        modules = _modules()
        variants = {variant: module for module in modules for variant in list_variants(module)}
        if name not in modules and name not in variants:
            known = [*modules, *variants]
            raise InputError(f"there is no recipe named {name!r}, only {', '.join(modules)}{nearest(name, known)}")
        module = modules[variants.get(name, name)]
        recipe = module.recipe if name in modules else module.recipes[name.removeprefix(f"{variants[name]}_")]
    if not isinstance(recipe, Recipe):
        raise InputError(f"{name} must assign recipe = Recipe(...), got {recipe!r}")
    return recipe


def _modules() -> dict[str, ModuleType]:
    names = sorted(name for _, name, _ in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
