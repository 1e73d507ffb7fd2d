"""Train every variant with every seed, and resume after an interruption."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import RESULT
from lambdanets.records import read_json, reraise_as_input_error, write_json
from lambdanets.signals import check_signals
from lambdanets.tasks.recipes import ClassificationRecipe
from lambdanets.training import run
from lambdanets.training.callbacks import METRICS
from lambdanets.training.distributed import World
from lambdanets.work import InUseError, WorkFolder
from lambdanets_lab.studies.catalog import STUDIES, Variant

PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """Studies, labels of the variants to train (all if empty), seeds, and the shared recipe."""

    studies: tuple[str, ...]
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    recipe: ClassificationRecipe

    def identity(self) -> dict[str, Any]:
        """The fields that determine the results."""
        return asdict(self) | {"recipe": self.recipe.identity(*self.recipe.PATHS)}

    def selected(self) -> dict[str, Variant]:
        """The variants to train, by name: once if several studies have them, also under other labels."""
        return {
            variant.name: variant
            for study in self.studies
            for label, variant in STUDIES[study].variants.items()
            if not self.variants or label in self.variants
        }

    def runs(self) -> list["Run"]:
        """All runs without duplicates, ordered by seed: after an interruption, the earlier seeds are complete."""
        return [
            Run(name, seed, replace(self.recipe, seed=seed, model_options=self.recipe.model_options | variant.options))
            for seed in self.seeds
            for name, variant in self.selected().items()
        ]


@dataclass(frozen=True)
class Run:
    variant: str
    seed: int
    recipe: ClassificationRecipe

    def folder(self, comparison: Path) -> Path:
        return comparison / "runs" / f"{self.variant.replace(' ', '-')}-seed{self.seed}"

    def result(self, comparison: Path) -> "RunResult | None":
        """The result of the run, or None if it is not finished. Raises InputError if its files are damaged."""
        folder = self.folder(comparison)
        if not (folder / RESULT).is_file():
            return None
        result = read_json(folder / RESULT, RunResult, f"remove {folder} to train it again")
        # without local paths, and as that of other seeds
        data = result.data.replace(self.recipe.data, Path(self.recipe.data).name)
        data = data.replace(f"with seed {self.seed}", "with the seed of the run")
        return replace(result, variant=self.variant, seed=self.seed, data=data, top1_by_epoch=read_top1(folder))


@dataclass(frozen=True)
class RunResult:
    """What results.json has of each run: fields of the run's result.json, and its key and curve."""

    top1: float
    parameters: int
    model_name: str
    data: str
    training_images: int
    validation_images: int
    epochs: int
    commit: str | None
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    variant: str = ""
    seed: int = 0
    top1_by_epoch: Sequence[float] = ()
    seconds: float = 0.0


def read_top1(folder: Path) -> list[float]:
    """Read the top-1 after each epoch from metrics.csv; empty without this file."""
    path = folder / METRICS
    if not path.exists():
        return []
    with reraise_as_input_error(f"{path} is damaged"), path.open(newline="", encoding="utf-8") as file:
        return [float(row["top1"]) for row in csv.DictReader(file) if row.get("split") == "val"]


def make_plan(
    studies: Sequence[str], variants: Sequence[str], seeds: Sequence[int], recipe: ClassificationRecipe
) -> Plan:
    recipe = replace(recipe, **run.absolute_paths(recipe))
    plan = Plan(tuple(dict.fromkeys(studies)), tuple(variants), tuple(dict.fromkeys(seeds)), recipe)
    varying = {name for variant in plan.selected().values() for name in variant.options}
    if conflicts := sorted(varying & recipe.model_options.keys()):
        raise InputError(f"model_options must not have {', '.join(conflicts)}, which the variants set")
    return plan


def begin(plan: Plan, folder: Path) -> None:
    """Check that every run can be trained, describe them, and write plan.json into a new or empty folder.

    Does nothing in a folder with the same plan. Raises InputError for a folder with another plan or other files, and
    for runs that cannot be trained.
    """
    advice = "choose another folder"
    work_folder = WorkFolder(folder, plan.identity(), PLAN, lambda file: read_json(file, Plan, advice).identity())
    if work_folder.is_started():
        return
    for planned in replace(plan, seeds=plan.seeds[:1]).runs():
        check_signals()
        task, *_ = run.prepare(run.resolve_recipe(planned.recipe), World())
    run.describe(task)
    with work_folder.open(shared=True):
        write_json(folder / PLAN, asdict(plan), 2)


def train_all(plan: Plan, folder: Path) -> Iterator[tuple[Run, RunResult | InputError]]:
    """Train all unfinished runs, and yield each with its result or, such as for a loss of NaN, its error.

    Several processes may share a folder, each on its own device: runs locked by another process are skipped.
    """
    (folder / "runs").mkdir(exist_ok=True)
    for planned in plan.runs():
        run_folder = planned.folder(folder)
        if (run_folder / RESULT).is_file():
            continue
        try:
            run.start(planned.recipe, run_folder, quiet=True)
        except InUseError:
            continue
        except InputError as error:
            yield planned, error
            continue
        if (result := planned.result(folder)) is not None:
            yield planned, result


def read_results(plan: Plan, folder: Path) -> list[RunResult]:
    """Read the results of the finished runs, in the order of the plan."""
    results = (planned.result(folder) for planned in plan.runs())
    return [result for result in results if result is not None]
