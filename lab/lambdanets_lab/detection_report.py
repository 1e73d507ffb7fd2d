"""Tables of the average precision of finished runs, with the columns of the paper's Table 14."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.files import RECIPE, RESULT
from lambdanets.records import read_json
from lambdanets.tasks.recipes import DetectionRecipe
from lambdanets.training.recipe import read_recipe
from lambdanets_lab.markdown import format_mean, markdown_table
from lambdanets_lab.seeds import paired_differences, scores_by_seed

_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
_KINDS = {"bbox": "box", "segm": "mask"}
Run = dict[str, Any]


def report(runs: Sequence[Path]) -> str:
    """Make tables of box and mask AP in percent, with one row per configuration in the order of the run folders.

    Differences to the first row, over the seeds of both, are in parentheses. Runs that differ
    only in the seed share a row with mean ± std. A dash means that the data has no objects of that
    size.

    Runs that differ in the content of their initial weights or training data have separate rows, labeled with the file.

    Raises InputError for a missing or damaged result.json, a run of another task, runs with
    different validation data, and two runs with the same configuration and seed.
    """
    results = {folder: _read(folder) for folder in runs}
    first_folder, first = next(iter(results.items()))
    by_identity: dict[str, list[Run]] = {}
    for folder, result in results.items():
        if any(result[name] != first[name] for name in ("images", "validated_on")):
            raise InputError(f"runs must have the same validation data, got others in {first_folder} and {folder}")
        row = by_identity.setdefault(json.dumps(result["identity"], sort_keys=True), [])
        if any(result["seed"] == other["seed"] for other in row):
            raise InputError(f"runs must differ, got {folder} with the recipe and seed of another")
        row.append(result)
    rows = list(by_identity.values())
    names = {result["data"] for result in results.values()}
    data = first["data"] if len(names) == 1 else first["validation_data"]["name"]
    caption = f"Average precision in percent on {data}, {first['images']:,} images."
    if len(rows) > 1:
        caption += " In brackets: difference to the first row, over the seeds of both."
    caption += " Mean ± std over seeds." if len(results) > len(rows) else ""
    return "\n\n".join([*(markdown_table(*_cells(rows, kind)) for kind in _KINDS), caption])


def _read(folder: Path) -> Run:
    """Read a result, and add its seed, what it shares with the runs of other seeds, and its validation data."""
    if not (folder / RESULT).is_file():
        raise InputError(f"{folder} must be the folder of a finished run, got one without {RESULT}")
    if (folder / RECIPE).is_file() and (task := read_recipe(folder / RECIPE).task) != "detection":
        raise InputError(f"{folder} must be a detection run, got a {task} run, whose scores are in its {RESULT}")
    result = read_json(folder / RESULT, Run)
    recipe = result["recipe"]
    changeable = {*DetectionRecipe.PATHS, *DetectionRecipe.CHANGEABLE}
    identity = {name: value for name, value in recipe.items() if name not in {"seed", *changeable}}
    for name in ("initial_weights", "training_data"):  # by content: moved files are the same
        file = result[name]
        identity[name] = file and f"{Path(file['name']).name} ({file['sha256'][:8]})"
    return result | {"seed": recipe["seed"], "identity": identity, "validated_on": result["validation_data"]["sha256"]}


def _label(row: Run, rows: Sequence[Sequence[Run]]) -> str:
    """Name the model, its options, and the other fields in which the rows differ."""
    fields = row["identity"]
    options = dict(fields["model_options"])
    for name, value in fields.items():
        differs = len({str(other[0]["identity"].get(name)) for other in rows}) > 1
        if differs and name not in ("model", "model_options"):
            options[name] = value
    return " ".join([fields["model"], *(f"{name}={value}" for name, value in options.items())])


def _cells(rows: Sequence[Sequence[Run]], kind: str) -> list[list[str]]:
    """The cells of the header and of each row."""
    lines = [["model", "params (M)", "seeds", *(f"{_KINDS[kind]} {name}" for name in _NAMES)]]
    for row in rows:
        cells = []
        for name in _NAMES:
            scores, baseline = (scores_by_seed(each, {}, kind, name) for each in (row, rows[0]))
            gains = paired_differences(scores, baseline) if row is not rows[0] else []
            gain = f" ({statistics.fmean(gains):+z.1f})" if gains else ""
            cells.append(format_mean(list(scores.values())) + gain)
        lines.append([_label(row[0], rows), f"{row[0]['parameters'] / 1e6:.1f}", str(len(row)), *cells])
    return lines
