"""Trains every variant with every seed; what is done is kept, so that a comparison goes on after a stop."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError, nearest
from lambdanets.evidence.studies.catalog import STUDIES, Variant, labels_of
from lambdanets.folders import WorkFolder
from lambdanets.locks import LOCK, InUseError, locked
from lambdanets.records import read_json, write_json
from lambdanets.training import run
from lambdanets.training.classification.model import ClassificationProbe
from lambdanets.training.classification.task import ClassificationTask
from lambdanets.training.memory import largest_micro_batch
from lambdanets.training.recipe import Recipe
from lambdanets.training.report import RESULT, read_result

PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """Studies by name, which of their variants to train (all if none is named), seeds, and the recipe all share."""

    studies: tuple[str, ...]
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    recipe: Recipe

    def variants_of(self, study: str) -> dict[str, Variant]:
        """The variants of a study that are to be trained."""
        every = STUDIES[study].variants
        return {label: variant for label, variant in every.items() if not self.variants or label in self.variants}

    def runs(self) -> list["Run"]:
        """Every run once, seed by seed: so a stop leaves whole rounds of all variants."""
        variants = {v.name: v for study in self.studies for v in self.variants_of(study).values()}
        return [
            Run(name, seed, replace(self.recipe, seed=seed, model_options=self.recipe.model_options | variant.options))
            for seed in self.seeds
            for name, variant in variants.items()
        ]


@dataclass(frozen=True)
class Run:
    """One variant with one seed, and the recipe for it."""

    variant: str
    seed: int
    recipe: Recipe

    def folder(self, comparison: Path) -> Path:
        """Where it is trained."""
        return comparison / "runs" / f"{self.variant.replace(' ', '-')}-seed{self.seed}"

    def result(self, comparison: Path) -> dict[str, Any] | None:
        """What it reached, or None if it is not finished."""
        folder = self.folder(comparison)
        if not (folder / RESULT).is_file():
            return None
        return {"variant": self.variant, "seed": self.seed} | read_result(folder, ClassificationTask.RESULT)


def make_plan(studies: Sequence[str], variants: Sequence[str], seeds: Sequence[int], recipe: Recipe) -> Plan:
    """A checked plan. Raises InputError for what does not fit."""
    known = labels_of(studies)
    for label in variants:
        if label not in known:
            raise InputError(f"variants must be among {', '.join(known)}; got {label!r}{nearest(label, known)}")
    for name, given in (("studies", studies), ("variants", variants), ("seeds", seeds)):
        if len(set(given)) < len(given):
            raise InputError(f"{name} must differ from each other, got {', '.join(map(str, given))}")
    for name, given in (("studies", studies), ("seeds", seeds)):
        if not given:
            raise InputError(f"{name} must be at least one, got none")
    if min(seeds) < 0:
        raise InputError(f"seeds must be at least 0, got {min(seeds)}")
    plan = Plan(tuple(studies), tuple(variants), tuple(seeds), recipe)
    ours = {name for study in studies for variant in plan.variants_of(study).values() for name in variant.options}
    if ours & recipe.model_options.keys():
        raise InputError(
            f"model_options must leave {', '.join(sorted(ours & recipe.model_options.keys()))} to the variants"
        )
    return plan


def begin(plan: Plan, folder: Path) -> None:
    """Write the plan into a new or empty folder, once every run of it is known to be possible.

    Raises InputError for a folder that holds something, and for what cannot be trained.
    """
    place = WorkFolder(folder, read_identity=_refuse_begun)
    place.is_started()
    runs = [planned for planned in plan.runs() if planned.seed == plan.seeds[0]]
    task = run.check(runs[0].recipe)
    for planned in runs[1:]:
        probe = ClassificationProbe(planned.recipe, len(task.classes))
        largest_micro_batch(probe, min(planned.recipe.batch_size, task.training_images))
    recipe = replace(plan.recipe, **run.absolute_paths(plan.recipe))
    with place.open():
        write_json(folder / PLAN, asdict(replace(plan, recipe=recipe)), 2)


def _refuse_begun(folder: Path) -> None:
    if (folder / PLAN).is_file():
        raise InputError(f"{folder} holds a comparison; go on with --resume, or name another folder")


def read_plan(folder: Path) -> Plan:
    """The plan of a folder that `begin` made. Raises InputError where there is none."""
    path = folder / PLAN
    if not path.is_file():
        raise InputError(f"{folder} is no folder of a comparison: it has no {PLAN}")
    plan = read_json(path, Plan, "start the comparison again in another folder")
    recipe = Recipe.from_fields(read_json(path, dict[str, Any])["recipe"], str(path))  # refuses unknown fields
    return make_plan(plan.studies, plan.variants, plan.seeds, recipe)


def train_all(plan: Plan, folder: Path, done: Callable[[dict[str, Any]], None]) -> None:
    """Train what is not trained yet, and call done with the result of each run that ends here.

    Several processes may work on one folder, each on a device of its own: a run that another has locked is left to it.
    """
    (folder / "runs").mkdir(exist_ok=True)
    for patient in (False, True):  # first those that no other process has; then it waits for those of dead hosts
        for planned in plan.runs():
            place = planned.folder(folder)
            if (place / RESULT).is_file():
                continue
            try:
                if place.is_dir():
                    with locked(place / LOCK, place, patient=patient):
                        pass  # it is free: training takes the lock itself
                begun = (place / run.RECIPE).is_file()
                result = run.resume(place) if begun else run.start(planned.recipe, place)
            except InUseError:
                continue
            done({"variant": planned.variant, "seed": planned.seed} | result)


def read_results(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Results of the runs that are finished, in the order of the plan."""
    found = (planned.result(folder) for planned in plan.runs())
    return [result for result in found if result is not None]
