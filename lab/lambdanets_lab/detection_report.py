"""A table of the average precision of finished runs, with the columns of the paper's Table 14."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lambdanets.errors import InputError
from lambdanets.files import RECIPE
from lambdanets.records import read_json
from lambdanets.tasks.recipes import DetectionRecipe
from lambdanets.terminal import text_table
from lambdanets.training.recipe import read_recipe
from lambdanets.training.report import RESULT
from lambdanets_lab.markdown import format_mean, markdown_table

Format = Literal["text", "markdown"]
_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
_KINDS = {"bbox": "box", "segm": "mask"}
_FILES = ("initial_weights", "training_data")


@dataclass(frozen=True)
class _Row:
    """One row of the table: runs that differ only in the seed. identity: what they share, by the name of a field."""

    identity: dict[str, Any]
    results: list[dict[str, Any]]

    def values(self, kind: str, name: str) -> list[float]:
        """Scores in percent, one per seed; empty if a run has no such score."""
        values = [result[kind][name] for result in self.results]
        return [] if None in values else [100 * value for value in values]

    def label(self, rows: Sequence["_Row"]) -> str:
        """Name the model, its options, and the other fields in which the rows differ."""
        fields = self.identity
        names = [name for name in fields if len({str(row.identity.get(name)) for row in rows}) > 1]
        options = fields["model_options"] | {n: fields[n] for n in names if n not in ("model", "model_options")}
        for name in {*_FILES} & {*names}:
            file = self.results[0][name]
            options[name] = file and f"{Path(file['name']).name} ({file['sha256'][:8]})"
        return " ".join([fields["model"], *(f"{name}={value}" for name, value in options.items())])


def report(runs: Sequence[Path], format: Format) -> str:
    """Make a table of box and mask AP in percent, with one row per configuration in the order of the run folders.

    Differences to the first row are in parentheses. Runs that differ only in the seed share a row with mean ± std. A
    dash means that the data has no objects of that size. In the text format, boxes and masks have separate tables.

    Runs that differ in the content of their initial weights or training data have separate rows, labeled with the file.

    Raises InputError for a missing or damaged result.json, a run of another task, runs with
    different validation data, and two runs with the same configuration and seed.
    """
    results = {folder: _read(folder) for folder in runs}
    (first_folder, first), *others = results.items()
    for folder, result in others:
        if any(result[name] != first[name] for name in ("images", "validated_on")):
            raise InputError(f"runs must have the same validation data, got others in {first_folder} and {folder}")
    rows: dict[str, _Row] = {}
    seen: dict[tuple[str, int], Path] = {}
    for folder, result in results.items():
        key = json.dumps(result["identity"], sort_keys=True)
        rows.setdefault(key, _Row(result["identity"], [])).results.append(result)
        earlier = seen.setdefault((key, result["recipe"]["seed"]), folder)
        if earlier != folder:
            raise InputError(f"runs must differ, got {earlier} and {folder} with the same recipe and seed")
    names = {result["data"] for result in results.values()}
    data = first["data"] if len(names) == 1 else first["validation_data"]["name"]
    caption = f"Average precision in percent on {data}, {first['images']:,} images."
    caption += " In brackets: difference to the first row." if len(rows) > 1 else ""
    caption += " Mean ± std over seeds." if len(results) > len(rows) else ""
    if format == "markdown":
        return f"{markdown_table(*_cells([*rows.values()], list(_KINDS)))}\n\n{caption}\n"
    return "\n".join(text_table(_cells([*rows.values()], [kind])) + "\n" for kind in _KINDS) + f"\n{caption}\n"


def _read(folder: Path) -> dict[str, Any]:
    """Read a result, and add its identity and the SHA-256 of its validation data."""
    if not (folder / RESULT).is_file():
        raise InputError(f"{folder} must be the folder of a finished run, got one without {RESULT}")
    if (folder / RECIPE).is_file() and (task := read_recipe(folder / RECIPE).task) != "detection":
        raise InputError(f"{folder} must be a detection run, got a {task} run, whose scores are in its {RESULT}")
    result = read_json(folder / RESULT, dict[str, Any])
    ignored = ("seed", *DetectionRecipe.CHANGEABLE)
    identity = {name: value for name, value in result["recipe"].items() if name not in ignored}
    for name in _FILES:  # by content: moved files are the same
        identity[name] = result[name] and result[name]["sha256"]
    return result | {"identity": identity, "validated_on": result["validation_data"]["sha256"]}


def _cells(rows: Sequence[_Row], kinds: Sequence[str]) -> list[list[str]]:
    """The cells of the header and of each row."""
    lines = [["model", "params (M)", "seeds", *(f"{_KINDS[kind]} {name}" for kind in kinds for name in _NAMES)]]
    for row in rows:
        cells = [_cell(row, rows[0], kind, name) for kind in kinds for name in _NAMES]
        parameters = f"{row.results[0]['parameters'] / 1e6:.1f}"
        lines.append([row.label(rows), parameters, str(len(row.results)), *cells])
    return lines


def _cell(row: _Row, baseline: _Row, kind: str, name: str) -> str:
    values, baseline_values = row.values(kind, name), baseline.values(kind, name)
    if row is baseline or not values or not baseline_values:
        return format_mean(values)
    return f"{format_mean(values)} ({statistics.fmean(values) - statistics.fmean(baseline_values):+z.1f})"
