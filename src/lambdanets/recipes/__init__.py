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
    modules = {name: _module(name) for _, name, _ in pkgutil.iter_modules(__path__)}
    return {name: (module.__doc__ or "").splitlines()[0] for name, module in sorted(modules.items())}


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
        known = list_recipes()
        if name not in known:
            raise InputError(f"there is no recipe named {name!r}, only {', '.join(known)}{nearest(name, known)}")
        recipe = _module(name).recipe
    if not isinstance(recipe, Recipe):
        raise InputError(f"{name} must assign recipe = Recipe(...), got {recipe!r}")
    return recipe


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
