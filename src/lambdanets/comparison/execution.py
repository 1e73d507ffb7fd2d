"""Trains every variant of a study with every seed; what is done is kept, so that a comparison goes on after a stop."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lambdanets.comparison.studies import STUDIES
from lambdanets.errors import InputError, nearest
from lambdanets.files import printable_bytes, write_whole
from lambdanets.training import run
from lambdanets.training.recipe import Recipe
from lambdanets.training.report import RESULT, read_result

PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """A study by name, the variants and seeds to train, and the recipe that all of them share."""

    study: str
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    recipe: Recipe

    def recipes(self) -> list[tuple[str, int, Recipe]]:
        """Variant, seed and recipe of every run, seed by seed: so a stop leaves whole rounds of all variants."""
        of = STUDIES[self.study].variants
        return [
            (name, seed, replace(self.recipe, seed=seed, model_options=self.recipe.model_options | of[name].options))
            for seed in self.seeds
            for name in self.variants
        ]


def make_plan(study: str, variants: Sequence[str], seeds: Sequence[int], recipe: Recipe) -> Plan:
    """A checked plan; all variants of the study if none is named. Raises InputError for what does not fit."""
    if study not in STUDIES:
        raise InputError(f"there is no study {study!r}, only {', '.join(STUDIES)}{nearest(study, STUDIES)}")
    known = STUDIES[study].variants
    for name in variants:
        if name not in known:
            raise InputError(f"{study} has no variant {name!r}, only {', '.join(known)}{nearest(name, known)}")
    for name, given in (("variants", variants), ("seeds", seeds)):
        if len(set(given)) < len(given):
            raise InputError(f"{name} must differ from each other, got {', '.join(map(str, given))}")
    if not seeds:
        raise InputError("seeds must be at least one number, got none")
    if min(seeds) < 0:
        raise InputError(f"seeds must be at least 0, got {min(seeds)}")
    return Plan(study, tuple(variants) or tuple(known), tuple(seeds), recipe)


def begin(plan: Plan, folder: Path) -> None:
    """Write the plan into a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "a comparison; go on with --resume" if (folder / PLAN).is_file() else "something already"
        raise InputError(f"{folder} holds {what}, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PLAN, printable_bytes(json.dumps(asdict(plan), indent=2) + "\n"))


def read_plan(folder: Path) -> Plan:
    """The plan of a folder that `begin` made. Raises InputError where there is none."""
    path = folder / PLAN
    if not path.is_file():
        raise InputError(f"{folder} is no folder of a comparison: it has no {PLAN}")
    try:
        content = json.loads(path.read_bytes())
        recipe = Recipe.from_fields(content["recipe"], str(path))
        return make_plan(content["study"], content["variants"], content["seeds"], recipe)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged; start the comparison again in another folder") from error


def train_all(plan: Plan, folder: Path, done: Callable[[list[dict[str, Any]]], None]) -> None:
    """Train what is not trained yet, and after each run call done with the results so far, a dict a run."""
    results: list[dict[str, Any]] = []
    for name, seed, recipe in plan.recipes():
        place = folder / "runs" / f"{name}-seed{seed}"
        before = (place / RESULT).is_file()
        result = run.resume(place) if (place / run.RECIPE).is_file() else run.start(recipe, place)
        results.append({"variant": name, "seed": seed} | result)
        if not before:
            done(results)


def read_results(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Results of the runs that are finished, in the order of the plan."""
    found = []
    for name, seed, _ in plan.recipes():
        place = folder / "runs" / f"{name}-seed{seed}"
        if (place / RESULT).is_file():
            found.append({"variant": name, "seed": seed} | read_result(place))
    return found
