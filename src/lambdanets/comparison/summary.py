"""What a comparison found: mean and spread over seeds, as data, as a table and as a picture."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lambdanets.comparison.execution import Plan
from lambdanets.comparison.studies import STUDIES
from lambdanets.errors import InputError
from lambdanets.files import printable_bytes, whole_file, write_whole

RESULTS, PICTURE, TABLE = "results.json", "comparison.png", "comparison.md"
# Of a run's result, what differs from run to run; the rest is said once.
_OF_A_RUN = ("variant", "seed", "top1", "seconds", "images_per_second", "parameters")
_OF_ALL = ("model_name", "data", "training_images", "validation_images", "epochs", "commit", "versions", "hardware")


def write_summary(plan: Plan, results: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Write results.json, comparison.md and comparison.png into the folder, and return what the first holds."""
    summary = summarize(plan, results)
    text = json.dumps(summary, indent=1, ensure_ascii=False)
    write_whole(folder / RESULTS, printable_bytes(text + "\n"))
    write_whole(folder / TABLE, printable_bytes(markdown(summary)))
    with whole_file(folder / PICTURE) as file:
        draw(summary).savefig(file, format="png", dpi=130)
    return summary


def summarize(plan: Plan, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Plan, every run, and for each variant the mean and the spread over its seeds, the best mean first."""
    last = results[-1]
    recipe = asdict(plan.recipe)
    for place in ("data", "data_root"):  # paths of a machine say nothing to others
        recipe[place] = Path(recipe[place]).name if recipe[place] else recipe[place]
    rows = []
    for name in plan.variants:
        runs = [result for result in results if result["variant"] == name]
        if not runs:
            continue
        top1 = [result["top1"] for result in runs]
        rows.append(
            {
                "variant": name,
                "seeds": len(runs),
                "mean_top1": round(statistics.fmean(top1), 6),
                "deviation_top1": round(statistics.stdev(top1), 6) if len(runs) > 1 else None,
                "least_top1": min(top1),
                "greatest_top1": max(top1),
                "parameters": runs[0]["parameters"],
                "mean_seconds": round(statistics.fmean(result["seconds"] for result in runs), 1),
                "printed_top1": STUDIES[plan.study].variants[name].printed,
            }
        )
    rows.sort(key=lambda row: -row["mean_top1"])
    common = {name: last[name] for name in _OF_ALL}
    common["data"] = _without_folders(common["data"], plan.recipe.data)
    return {
        "study": plan.study,
        "question": STUDIES[plan.study].question,
        "finished": len(results) == len(plan.variants) * len(plan.seeds),
        "seeds": list(plan.seeds),
        "variants": rows,
        "runs": [{name: result[name] for name in _OF_A_RUN} for result in results],
        "recipe": recipe,
        **common,
    }


def read_summary(path: Path) -> dict[str, Any]:
    """The content of a results.json. Raises InputError where it is none."""
    try:
        summary = json.loads(path.read_bytes())
        markdown(summary)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path} holds no results of a comparison") from error
    return dict(summary)


def markdown(summary: dict[str, Any]) -> str:
    """The variants as a Markdown table, under what they were trained on and above what the numbers mean."""
    lines = [
        f"{summary['question']}",
        "",
        f"{summary['model_name']} on {summary['data']}: {summary['training_images']:,} training images, "
        f"{summary['epochs']} epochs, {summary['validation_images']:,} test images, seeds "
        f"{', '.join(map(str, summary['seeds']))}{'' if summary['finished'] else ', not finished'}.",
        "",
        "| variant | top-1, mean ± deviation | least to greatest | parameters | seconds a run | paper, ImageNet |",
        "|---|---|---|---|---|---|",
    ]
    for row in summary["variants"]:
        deviation = "" if row["deviation_top1"] is None else f" ± {100 * row['deviation_top1']:.2f}"
        spread = f"{100 * row['least_top1']:.2f} to {100 * row['greatest_top1']:.2f}"
        printed = "" if row["printed_top1"] is None else f"{row['printed_top1']:.1f}"
        lines.append(
            f"| {row['variant'].replace('_', ' ')} | {100 * row['mean_top1']:.2f}{deviation} | {spread} "
            f"| {row['parameters']:,} | {row['mean_seconds']:.0f} | {printed} |"
        )
    return "\n".join(lines) + "\n"


def draw(summary: dict[str, Any]) -> Figure:
    """A row a variant: every run as a dot, the mean with a bar of one deviation each way."""
    rows = list(reversed(summary["variants"]))
    figure = Figure(figsize=(8, 1.2 + 0.36 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for height, row in enumerate(rows):
        runs = [100 * result["top1"] for result in summary["runs"] if result["variant"] == row["variant"]]
        colour = "#1d4ed8" if row["variant"].startswith("lambda") else "#111827"
        axis.plot(runs, [height] * len(runs), "o", color=colour, alpha=0.35, markersize=5)
        error = None if row["deviation_top1"] is None else 100 * row["deviation_top1"]
        axis.errorbar(100 * row["mean_top1"], height, xerr=error, fmt="|", color=colour, markersize=14, capsize=4)
    axis.set_yticks(range(len(rows)), [row["variant"].replace("_", " ") for row in rows])
    axis.set_xlabel("top-1 on test images, %: runs, mean, one standard deviation")
    axis.grid(axis="x", alpha=0.3)
    axis.set_title(f"{summary['training_images']:,} images, {summary['epochs']} epochs", fontsize=10)
    return figure


def _without_folders(source: str, data: str) -> str:
    """A description of data without the folder it lies in."""
    return source.replace(data, Path(data).name) if data else source
