"""Results of a comparison, with mean and std over seeds, as JSON, Markdown tables and figures."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import t as student_t

from lambdanets.errors import InputError
from lambdanets.evidence import plot_style
from lambdanets.evidence.former_keys import with_current_keys
from lambdanets.evidence.plot_style import GRID, OURS, REFERENCE
from lambdanets.evidence.studies.catalog import STUDIES, Variant
from lambdanets.evidence.studies.execution import Plan
from lambdanets.files import atomic_write, encode_utf8, open_regular
from lambdanets.records import write_json
from lambdanets.text_tables import markdown_table

RESULTS, TABLE = "results.json", "comparison.md"
# Fields of a run's result, by how often results.json has them: once per run, once per machine, once in total.
_RUN_FIELDS = ("variant", "seed", "top1", "top1_by_epoch", "parameters", "commit")
_MACHINE_FIELDS = ("versions", "hardware")
# Fields of the recipe that do not change the accuracy systematically.
_EXECUTION_FIELDS = ("seed", "workers", "max_unreadable", "checkpoint_every")
_COMMON_FIELDS = ("model_name", "data", "training_images", "validation_images", "epochs")


def write_summary(plan: Plan, results: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Write results.json, comparison.md and one figure per study; return the content of results.json."""
    summary = summarize(plan, results)
    write_json(folder / RESULTS, summary)
    atomic_write(folder / TABLE, encode_utf8(markdown(summary)))
    draw_all(summary, folder)
    return summary


def summarize(plan: Plan, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of results.json: the recipe, the runs, and mean and std of each variant, best mean first.

    A gain is the difference to the baseline with the same seed, so that the effect of the seed cancels.
    """
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
        "studies": {name: _summarize_study(name, plan.study_variants(name), results) for name in plan.studies},
        "recipe": recipe,
        "machines": machines,
        "runs": runs,
    }


def merge(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the results of comparisons with the same recipe and data, such as of other seeds or variants.

    Raises InputError if they differ otherwise, or if a variant and seed occurs twice.
    """
    first = summaries[0]
    if len(summaries) == 1:
        return first
    machines: list[dict[str, Any]] = []
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    for summary in summaries:
        for field in _COMMON_FIELDS:
            if summary[field] != first[field]:
                raise InputError(f"results to merge must have the same {field}, got {first[field]}, {summary[field]}")
        for field in sorted({*first["recipe"], *summary["recipe"]} - {*_EXECUTION_FIELDS}):
            expected, value = first["recipe"].get(field), summary["recipe"].get(field)
            if value != expected:
                raise InputError(f"results to merge must have recipes with the same {field}, got {expected}, {value}")
        machines += [machine for machine in summary["machines"] if machine not in machines]
        for run in summary["runs"]:
            key = run["variant"], run["seed"]
            if key in runs:
                raise InputError(f"results to merge must have different runs, got {key[0]}, seed {key[1]}, twice")
            runs[key] = run | {"machine": machines.index(summary["machines"][run["machine"]])}
    results = list(runs.values())
    labels: dict[str, set[str]] = {}
    for name, study in ((name, study) for summary in summaries for name, study in summary["studies"].items()):
        if name not in STUDIES:
            raise InputError(f"studies to merge must be among {', '.join(STUDIES)}, got {name!r}")
        labels.setdefault(name, set()).update(row["label"] for row in study["variants"])
    return first | {
        "finished": all(summary["finished"] for summary in summaries),
        "seeds": sorted({seed for _, seed in runs}),
        "studies": {
            name: _summarize_study(
                name, {label: v for label, v in study.variants.items() if label in labels[name]}, results
            )
            for name, study in STUDIES.items()
            if name in labels
        },
        "machines": machines,
        "runs": results,
    }


def _summarize_study(study: str, variants: dict[str, Variant], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return question, baseline and one row per variant that has runs, the best mean first."""
    rows = []
    baseline = STUDIES[study].variants[STUDIES[study].baseline].name
    baseline_top1 = {result["seed"]: result["top1"] for result in results if result["variant"] == baseline}
    for label, variant in variants.items():
        runs = [result for result in results if result["variant"] == variant.name]
        if not runs:
            continue
        top1 = [run["top1"] for run in runs]
        gains = [run["top1"] - baseline_top1[run["seed"]] for run in runs if run["seed"] in baseline_top1]
        rows.append(
            {
                "label": label,
                "variant": variant.name,
                "seeds": len(runs),
                "mean_top1": round(statistics.fmean(top1), 6),
                "std_top1": _std(top1),
                "mean_gain": round(statistics.fmean(gains), 6) if gains else None,
                "std_gain": _std(gains),
                "paired_seeds": len(gains),
                "min_top1": min(top1),
                "max_top1": max(top1),
                "parameters": runs[0]["parameters"],
                "paper_top1": variant.paper_top1,
                "quoted": variant.quoted,
            }
        )
    rows.sort(key=lambda row: -row["mean_top1"])
    return {"question": STUDIES[study].question, "baseline": STUDIES[study].baseline, "variants": rows}


def _std(values: Sequence[float]) -> float | None:
    return round(statistics.stdev(values), 6) if len(values) > 1 else None


def confidence_interval(mean: float, std: float, count: int) -> tuple[float, float]:
    """Return the 95% confidence interval of the mean of `count` normal samples, by Student's t distribution."""
    half = float(student_t.ppf(0.975, count - 1)) * std / count**0.5
    return mean - half, mean + half


def read_summary(path: Path) -> dict[str, Any]:
    """Read results.json of a comparison. Raises InputError for any other file."""
    try:
        with open_regular(path) as file:
            summary = with_current_keys(json.loads(file.read()))
        markdown(summary)
        _check_runs(summary)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise InputError(f"{path} must be the results.json of a comparison") from error
    return dict(summary)


def _check_runs(summary: dict[str, Any]) -> None:
    """Raise KeyError, TypeError or IndexError if `merge` could not read the recipe and the runs."""
    set(summary["recipe"])
    for run in summary["runs"]:
        _ = run["variant"], run["seed"], run["top1"], run["parameters"], summary["machines"][run["machine"]]


def markdown(summary: dict[str, Any]) -> str:
    """Format the setup as a sentence and each study as a table."""
    parts = [describe_setup(summary)]
    parts += [f"## {study['question']}\n\n{table(study)}" for study in summary["studies"].values()]
    return "\n\n".join(parts) + "\n"


def describe_setup(summary: dict[str, Any]) -> str:
    """Describe in one sentence the model, data, seeds and machines of all runs."""
    machines = [machine["hardware"]["gpu"] or machine["hardware"]["processor"] for machine in summary["machines"]]
    return (
        f"{summary['model_name']} on {summary['data']}; {summary['training_images']:,} training images, epochs: "
        f"{summary['epochs']}, test images: {summary['validation_images']:,}, seeds "
        f"{', '.join(map(str, summary['seeds']))}{'' if summary['finished'] else ', not finished'}; trained on "
        f"{', '.join(dict.fromkeys(machines))}."
    )


def table(study: dict[str, Any]) -> str:
    """Format the variants of a study as a Markdown table, the best mean first."""
    header = ["variant", "top-1, mean ± std", "min to max", "seeds"]
    header += [f"paired difference to {study['baseline']}", "95% interval", "parameters", "paper, ImageNet"]
    rows = []
    for row in study["variants"]:
        std = "" if row["std_top1"] is None else f" ± {100 * row['std_top1']:.2f}"
        gain = interval = ""
        if row["mean_gain"] is not None and row["label"] != study["baseline"]:
            gain = f"{100 * row['mean_gain']:+.2f}"
            if row["std_gain"] is not None:
                low, high = confidence_interval(
                    row["mean_gain"], row["std_gain"], row.get("paired_seeds", row["seeds"])
                )
                gain += f" ± {100 * row['std_gain']:.2f}"
                interval = f"{100 * low:+.2f} to {100 * high:+.2f}"
        spread = f"{100 * row['min_top1']:.2f} to {100 * row['max_top1']:.2f}"
        paper = "" if row["paper_top1"] is None else f"{row['paper_top1']:.1f}{' †' if row['quoted'] else ''}"
        top1 = f"{100 * row['mean_top1']:.2f}{std}"
        rows.append([row["label"], top1, spread, str(row["seeds"]), gain, interval, f"{row['parameters']:,}", paper])
    text = markdown_table(header, *rows)
    if any(row["quoted"] for row in study["variants"]):
        text += "\n\n† quoted by the paper from another paper, with another network and training"
    return text


def draw_all(summary: dict[str, Any], folder: Path) -> list[Path]:
    """Draw STUDY.png for each study with runs, and STUDY_curves.png if it has `_mean_curves`; return the paths."""
    paths = []
    for name, study in summary["studies"].items():
        if not study["variants"]:
            continue
        figures = {name: _draw(study, summary)}
        if curves := _mean_curves(study, summary):
            figures[f"{name}_curves"] = _draw_curves(curves)
        for stem, figure in figures.items():
            paths.append(folder / f"{stem}.png")
            plot_style.save(figure, paths[-1])
    return paths


def _mean_curves(study: dict[str, Any], summary: dict[str, Any]) -> dict[str, list[float]]:
    """Return the mean over seeds of the top-1 after each epoch, by label.

    Empty for too many variants, if a run has another number of epochs, such as without its curve, or a single one, and
    if epochs were validated on held-out images, which are not the test images.
    """
    if summary["recipe"].get("hold_out"):
        return {}
    curves = {}
    for row in study["variants"]:
        runs = [run.get("top1_by_epoch", []) for run in summary["runs"] if run["variant"] == row["variant"]]
        if {len(run) for run in runs} != {summary["epochs"]} or summary["epochs"] < 2:
            return {}
        curves[row["label"]] = [statistics.fmean(values) for values in zip(*runs, strict=True)]
    return curves if len(curves) <= 1 + len(plot_style.BASELINES) else {}


def _draw_curves(curves: dict[str, list[float]]) -> Figure:
    figure, (axis,) = plot_style.subplots(1)
    styles = ((OURS, "o"), *plot_style.BASELINES)
    for (label, top1), (color, marker) in zip(curves.items(), styles, strict=False):
        axis.plot(range(1, len(top1) + 1), [100 * value for value in top1], color=color, marker=marker, label=label)
    axis.set(xlabel="epoch", ylabel="top-1 on test images (%),\nmean over seeds")
    axis.grid(**GRID)
    axis.legend(fontsize=10)
    return figure


def _draw(study: dict[str, Any], summary: dict[str, Any]) -> Figure:
    """Draw one line per variant: a dot for each run, and the mean with an error bar of one std."""
    rows = list(reversed(study["variants"]))
    figure, (axis,) = plot_style.subplots(1, height=1.2 + 0.4 * len(rows))
    for y, row in enumerate(rows):
        runs = [100 * run["top1"] for run in summary["runs"] if run["variant"] == row["variant"]]
        color, marker = (OURS, "o") if row["variant"].startswith("lambda") else (REFERENCE, "s")
        axis.plot(runs, [y] * len(runs), marker, color=color, alpha=0.35)
        std = None if row["std_top1"] is None else 100 * row["std_top1"]
        axis.errorbar(100 * row["mean_top1"], y, xerr=std, fmt="|", color=color, markersize=16, capsize=4)
    axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axis.set_xlabel("top-1 on test images (%): runs, mean ± std")
    axis.grid(axis="x", **GRID)
    return figure
