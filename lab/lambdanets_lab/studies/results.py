"""results.json of a comparison: its runs, and statistics over seeds that are computed from them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.records import read_json
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
    runs = [
        {name: result[name] for name in _RUN_FIELDS} | {"machine": {name: result[name] for name in _MACHINE_FIELDS}}
        for result in results
    ]
    finished = len(results) == len(plan.runs())
    return {"kind": "comparison", "finished": finished, **common, "recipe": recipe, **_summarize(plan.studies, runs)}


def read_comparison(*paths: Path) -> dict[str, Any]:
    """Read results.json of a comparison, or of several with the same recipe and data, such as of other seeds.

    The statistics are computed from the runs. Raises InputError for other files, and if a run occurs twice.
    """
    contents = {path: read_json(path, dict[str, Any]) for path in paths}
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    for path, content in contents.items():
        if content.get("kind") != "comparison":
            raise InputError(f"{path} must be the results.json of a comparison, got another file")
        _check_same_setup(contents[paths[0]], content, f"{paths[0]} and {path}")
        for run in content["runs"]:
            variant, seed = key = run["variant"], run["seed"]
            if key in runs:
                raise InputError(f"results to merge must have different runs, got {variant}, seed {seed} twice: {path}")
            runs[key] = run | {"machine": content["machines"][run["machine"]]}
    studies = [name for name in STUDIES if any(name in content["studies"] for content in contents.values())]
    finished = all(content["finished"] for content in contents.values())
    return contents[paths[0]] | {"finished": finished} | _summarize(studies, list(runs.values()))


def _summarize(studies: Iterable[str], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return seeds, statistics of the studies, machines, and runs with the indices of their machines."""
    machines: list[dict[str, Any]] = []
    for run in runs:
        machines += [] if run["machine"] in machines else [run["machine"]]
    return {
        "seeds": sorted({run["seed"] for run in runs}),
        "studies": {name: _statistics(name, runs) for name in studies},
        "machines": machines,
        "runs": [run | {"machine": machines.index(run["machine"])} for run in runs],
    }


def _check_same_setup(first: Mapping[str, Any], other: Mapping[str, Any], files: str) -> None:
    """Raise InputError unless data and recipe are equal; only fields are compared that both recipes have."""
    for field in _COMMON_FIELDS:
        if other[field] != first[field]:
            raise InputError(f"{files} must have the same {field}, got {first[field]} and {other[field]}")
    recipes = first["recipe"], other["recipe"]
    for field in recipes[0].keys() & recipes[1].keys() - {*_NOT_COMPARED}:
        values = [recipe[field] for recipe in recipes]
        if values[0] != values[1]:
            raise InputError(f"{files} must have recipes with the same {field}, got {values[0]} and {values[1]}")


def _statistics(study: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
    for label, variant in STUDIES[study].variants.items():
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
