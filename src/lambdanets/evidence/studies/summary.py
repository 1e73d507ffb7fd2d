"""What a comparison found: mean and spread over seeds, as data, as tables and as pictures."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lambdanets.errors import InputError
from lambdanets.evidence.studies.catalog import STUDIES
from lambdanets.evidence.studies.execution import Plan
from lambdanets.files import atomic_open, atomic_write, open_regular, printable_bytes
from lambdanets.records import write_json
from lambdanets.text_tables import markdown_table

RESULTS, TABLE = "results.json", "comparison.md"
# Of a run's result, what differs from run to run; the rest is said once.
_OF_A_RUN = ("variant", "seed", "top1", "parameters", "commit")
_OF_A_MACHINE = ("versions", "hardware")
_OF_ALL = ("model_name", "data", "training_images", "validation_images", "epochs")


def write_summary(plan: Plan, results: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Write results.json, comparison.md and a picture a study into the folder; return what the first holds."""
    summary = summarize(plan, results)
    write_json(folder / RESULTS, summary)
    atomic_write(folder / TABLE, printable_bytes(markdown(summary)))
    draw_all(summary, folder)
    return summary


def summarize(plan: Plan, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Recipe, every run, and for each variant of each study mean and spread over its seeds, best mean first.

    A gain is top-1 less the baseline's with the same seed: without what a seed does to all alike.
    """
    last = results[-1]
    recipe = asdict(plan.recipe)
    for place in ("data", "data_root"):  # paths of a machine say nothing to others
        recipe[place] = Path(recipe[place]).name if recipe[place] else recipe[place]
    common = {name: last[name] for name in _OF_ALL}
    data = common["data"].replace(plan.recipe.data, recipe["data"])
    common["data"] = data.replace(f"with seed {last['seed']}", "with the seed of the run")
    machines: list[dict[str, Any]] = []
    runs = []
    for result in results:
        machine = {name: result[name] for name in _OF_A_MACHINE}
        machines += [] if machine in machines else [machine]
        runs.append({name: result[name] for name in _OF_A_RUN} | {"machine": machines.index(machine)})
    return {
        "kind": "comparison",
        "finished": len(results) == len(plan.runs()),
        **common,
        "seeds": list(plan.seeds),
        "studies": {
            name: {
                "question": STUDIES[name].question,
                "baseline": STUDIES[name].baseline,
                "variants": _rows(plan, name, results),
            }
            for name in plan.studies
        },
        "recipe": recipe,
        "machines": machines,
        "runs": runs,
    }


def _rows(plan: Plan, study: str, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    baseline = STUDIES[study].variants[STUDIES[study].baseline].name
    of_baseline = {result["seed"]: result["top1"] for result in results if result["variant"] == baseline}
    for label, variant in plan.variants_of(study).items():
        runs = [result for result in results if result["variant"] == variant.name]
        if not runs:
            continue
        top1 = [run["top1"] for run in runs]
        gains = [run["top1"] - of_baseline[run["seed"]] for run in runs if run["seed"] in of_baseline]
        rows.append(
            {
                "label": label,
                "variant": variant.name,
                "seeds": len(runs),
                "mean_top1": round(statistics.fmean(top1), 6),
                "deviation_top1": _deviation(top1),
                "mean_gain": round(statistics.fmean(gains), 6) if gains else None,
                "deviation_gain": _deviation(gains),
                "least_top1": min(top1),
                "greatest_top1": max(top1),
                "parameters": runs[0]["parameters"],
                "printed_top1": variant.printed,
                "quoted": variant.quoted,
            }
        )
    return sorted(rows, key=lambda row: -row["mean_top1"])


def _deviation(values: Sequence[float]) -> float | None:
    return round(statistics.stdev(values), 6) if len(values) > 1 else None


def read_summary(path: Path) -> dict[str, Any]:
    """The content of a results.json. Raises InputError where it is none."""
    try:
        with open_regular(path) as file:
            summary = json.loads(file.read())
        markdown(summary)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise InputError(f"{path} holds no results of a comparison") from error
    return dict(summary)


def markdown(summary: dict[str, Any]) -> str:
    """What was trained on what, then a table for each study."""
    parts = [described(summary)]
    parts += [f"## {study['question']}\n\n{table(study)}" for study in summary["studies"].values()]
    return "\n\n".join(parts) + "\n"


def described(summary: dict[str, Any]) -> str:
    """The set-up that all runs share, in a sentence."""
    machines = [machine["hardware"]["gpu"] or machine["hardware"]["processor"] for machine in summary["machines"]]
    return (
        f"{summary['model_name']} on {summary['data']}; {summary['training_images']:,} training images, epochs: "
        f"{summary['epochs']}, test images: {summary['validation_images']:,}, seeds "
        f"{', '.join(map(str, summary['seeds']))}{'' if summary['finished'] else ', not finished'}; trained on "
        f"{', '.join(dict.fromkeys(machines))}."
    )


def table(study: dict[str, Any]) -> str:
    """The variants of a study as a Markdown table, the best mean first."""
    header = ["variant", "top-1, mean ± std", "min to max", "seeds"]
    header += [f"paired difference to {study['baseline']}", "parameters", "paper, ImageNet"]
    rows = []
    for row in study["variants"]:
        deviation = "" if row["deviation_top1"] is None else f" ± {100 * row['deviation_top1']:.2f}"
        gain = "" if row["mean_gain"] is None else f"{100 * row['mean_gain']:+.2f}"
        if row["deviation_gain"] is not None:
            gain += f" ± {100 * row['deviation_gain']:.2f}"
        gain = "" if row["label"] == study["baseline"] else gain
        spread = f"{100 * row['least_top1']:.2f} to {100 * row['greatest_top1']:.2f}"
        printed = "" if row["printed_top1"] is None else f"{row['printed_top1']:.1f}{' †' if row['quoted'] else ''}"
        top1 = f"{100 * row['mean_top1']:.2f}{deviation}"
        rows.append([row["label"], top1, spread, str(row["seeds"]), gain, f"{row['parameters']:,}", printed])
    shown = markdown_table(header, *rows)
    if any(row["quoted"] for row in study["variants"]):
        shown += "\n\n† quoted by the paper from another paper, with another network and training"
    return shown


def draw_all(summary: dict[str, Any], folder: Path) -> list[Path]:
    """Write STUDY.png for each study that has runs, and return the paths."""
    paths = []
    for name, study in summary["studies"].items():
        if study["variants"]:
            paths.append(folder / f"{name}.png")
            with atomic_open(paths[-1]) as file:
                _draw(study, summary).savefig(file, format="png", dpi=130)
    return paths


def _draw(study: dict[str, Any], summary: dict[str, Any]) -> Figure:
    """A row a variant: every run as a dot, the mean with a bar of one deviation each way."""
    rows = list(reversed(study["variants"]))
    figure = Figure(figsize=(8, 1.2 + 0.36 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for height, row in enumerate(rows):
        runs = [100 * run["top1"] for run in summary["runs"] if run["variant"] == row["variant"]]
        colour = "#1d4ed8" if row["variant"].startswith("lambda") else "#111827"
        axis.plot(runs, [height] * len(runs), "o", color=colour, alpha=0.35, markersize=5)
        error = None if row["deviation_top1"] is None else 100 * row["deviation_top1"]
        axis.errorbar(100 * row["mean_top1"], height, xerr=error, fmt="|", color=colour, markersize=14, capsize=4)
    axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axis.set_xlabel("top-1 on test images, %: runs, mean, one standard deviation")
    axis.grid(axis="x", alpha=0.3)
    return figure
