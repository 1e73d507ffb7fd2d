"""results.json of a comparison: its runs, and statistics over seeds that are computed from them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import open_regular
from lambdanets.records import parse_json
from lambdanets.tasks.classification.recipe import ClassificationRecipe
from lambdanets_lab.paired import confidence_interval, paired_differences
from lambdanets_lab.studies.catalog import STUDIES
from lambdanets_lab.studies.execution import Plan

# Fields of a run's result, by how often results.json has them: once per run, once per machine, once in total.
_RUN_FIELDS = ("variant", "seed", "top1", "top1_by_epoch", "seconds", "parameters", "commit")
_MACHINE_FIELDS = ("versions", "hardware")
_COMMON_FIELDS = ("model_name", "data", "training_images", "validation_images", "epochs")
# Fields of the recipe that do not change the accuracy systematically, or are compared otherwise.
_NOT_COMPARED = ("seed", "workers", "max_unreadable", "checkpoint_every", "data", "data_root")


def collect(plan: Plan, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of results.json: the recipe, the runs, and the statistics of each study."""
    last = results[-1]
    recipe = asdict(plan.recipe)
    for field in ("data", "data_root"):  # without local paths
        recipe[field] = Path(recipe[field]).name if recipe[field] else recipe[field]
    common = {name: last[name] for name in _COMMON_FIELDS}
    data = common["data"].replace(plan.recipe.data, recipe["data"])
    common["data"] = data.replace(f"with seed {last['seed']}", "with the seed of the run")
    machines: list[dict[str, Any]] = []
    runs = []
    for result in results:
        machine = {name: result[name] for name in _MACHINE_FIELDS}
        machines += [] if machine in machines else [machine]
        runs.append({name: result[name] for name in _RUN_FIELDS} | {"machine": machines.index(machine)})
    return {
        "kind": "comparison",
        "finished": len(results) == len(plan.runs()),
        **common,
        "seeds": list(plan.seeds),
        "studies": {name: _statistics(name, plan.study_variants(name), runs) for name in plan.studies},
        "recipe": recipe,
        "machines": machines,
        "runs": runs,
    }


def read_comparison(*paths: Path) -> dict[str, Any]:
    """Read results.json of a comparison, or of several with the same recipe and data, such as of other seeds.

    The statistics are computed from the runs. Raises InputError for other files, and if a run occurs twice.
    """
    contents = {path: _read(path) for path in paths}
    first_path, *others = contents
    first = contents[first_path]
    for path in others:
        _check_same_setup(first, contents[path], f"{first_path} and {path}")
    machines: list[Any] = []
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    labels: dict[str, set[str]] = {}
    parameters: dict[str, int] = {}
    for path, content in contents.items():
        for run in content["runs"]:
            variant, seed = key = run["variant"], run["seed"]
            if key in runs:
                raise InputError(f"results to merge must have different runs, got {variant}, seed {seed} twice: {path}")
            if parameters.setdefault(variant, run["parameters"]) != run["parameters"]:
                raise InputError(f"runs of {variant} must have the same number of parameters, got others in {path}")
            machine = content["machines"][run["machine"]]
            machines += [] if machine in machines else [machine]
            runs[key] = {**run, "machine": machines.index(machine)}
        for name, study in content["studies"].items():
            labels.setdefault(name, set()).update(row["label"] for row in study.get("variants", ()))
    return {
        **first,
        "finished": all(content["finished"] for content in contents.values()),
        "seeds": sorted({seed for _, seed in runs}),
        "studies": {name: _statistics(name, labels[name], list(runs.values())) for name in STUDIES if name in labels},
        "machines": machines,
        "runs": list(runs.values()),
    }


def _read(path: Path) -> dict[str, Any]:
    """Read one file. Raises InputError if it is not the results of a comparison."""
    try:
        with open_regular(path) as file:
            content: dict[str, Any] = parse_json(file.read(), dict[str, Any], f"{path} is damaged")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if content.get("kind") != "comparison":
        raise InputError(f"{path} must be the results.json of a comparison, got another file")
    return content


def _check_same_setup(first: Mapping[str, Any], other: Mapping[str, Any], files: str) -> None:
    """Raise InputError unless data and recipe are equal. Fields that an older file lacks have their defaults."""
    for field in _COMMON_FIELDS:
        if other[field] != first[field]:
            raise InputError(f"{files} must have the same {field}, got {first[field]} and {other[field]}")
    recipes = [
        ClassificationRecipe.from_fields(content["recipe"], f"the recipe in {files}") for content in (first, other)
    ]
    for field in (each.name for each in fields(ClassificationRecipe) if each.name not in _NOT_COMPARED):
        values = [getattr(recipe, field) for recipe in recipes]
        if values[0] != values[1]:
            raise InputError(f"{files} must have recipes with the same {field}, got {values[0]} and {values[1]}")


def _statistics(study: str, labels: Iterable[str], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return question, baseline and one row per variant that has runs: those with most seeds first, then by mean.

    mean_difference, std_difference, interval: of paired differences to the baseline; the interval is that of 95%
    confidence, None with fewer than two pairs.
    """
    top1: dict[str, dict[int, float]] = {}
    for run in runs:
        top1.setdefault(run["variant"], {})[run["seed"]] = run["top1"]
    parameters = {run["variant"]: run["parameters"] for run in runs}
    baseline = top1.get(STUDIES[study].variants[STUDIES[study].baseline].name, {})
    rows = []
    for label in (label for label in STUDIES[study].variants if label in set(labels)):
        variant = STUDIES[study].variants[label]
        if variant.name not in top1:
            continue
        values = list(top1[variant.name].values())
        differences = paired_differences(top1[variant.name], baseline)
        low, high = confidence_interval(differences)
        rows.append(
            {
                "label": label,
                "variant": variant.name,
                "seeds": len(values),
                "mean_top1": round(statistics.fmean(values), 6),
                "std_top1": _std(values),
                "mean_difference": round(statistics.fmean(differences), 6) if differences else None,
                "std_difference": _std(differences),
                "interval": [round(low, 6), round(high, 6)] if len(differences) > 1 else None,
                "min_top1": min(values),
                "max_top1": max(values),
                "parameters": parameters[variant.name],
                "paper_top1": variant.paper_top1,
                "quoted": variant.quoted,
            }
        )
    rows.sort(key=lambda row: (-row["seeds"], -row["mean_top1"]))
    return {"question": STUDIES[study].question, "baseline": STUDIES[study].baseline, "variants": rows}


def _std(values: Sequence[float]) -> float | None:
    return round(statistics.stdev(values), 6) if len(values) > 1 else None
