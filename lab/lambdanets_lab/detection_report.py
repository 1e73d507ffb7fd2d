"""A table of the average precision of finished runs, with the columns of the paper's Table 14."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from lambdanets.errors import InputError
from lambdanets.records import parse_json, reraise_as_input_error
from lambdanets.tasks.detection.recipe import DetectionRecipe
from lambdanets.text_tables import format_mean, markdown_table, text_table
from lambdanets.training.recipe import RECIPE, read_recipe
from lambdanets.training.report import RESULT

Format = Literal["text", "markdown"]
_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
_KINDS = {"bbox": "box", "segm": "mask"}


@dataclass(frozen=True)
class _FileIdentity:
    name: str
    sha256: str


@dataclass(frozen=True)
class _Recipe:
    model: str
    model_options: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class _Result:
    recipe: _Recipe
    bbox: dict[str, float | None]
    segm: dict[str, float | None]
    data: str
    images: int
    parameters: int
    initial_weights: _FileIdentity | None
    training_data: _FileIdentity
    validation_data: _FileIdentity


@dataclass(frozen=True)
class _Row:
    """One row of the table: runs that differ only in the seed."""

    recipe: dict[str, Any]
    results: list[dict[str, Any]]

    def matches(self, result: dict[str, Any]) -> bool:
        """Whether a run has the row's recipe, initial weights and training data."""
        first = self.results[0]
        return (
            self.recipe == _without_seed(result["recipe"])
            and _sha256(first, "initial_weights") == _sha256(result, "initial_weights")
            and _sha256(first, "training_data") == _sha256(result, "training_data")
        )

    def values(self, kind: str, name: str) -> list[float]:
        """Scores in percent, one per seed; empty if a run has no such score."""
        values = [result[kind][name] for result in self.results]
        return [] if None in values else [100 * value for value in values]


def report(runs: Sequence[Path], format: Format) -> str:
    """Make a table of box and mask AP in percent, with one row per configuration in the order of the run folders.

    Differences to the first row are in parentheses. Runs that differ only in the seed share a row with mean ± std. A
    dash means that the data has no objects of that size. In the text format, boxes and masks have separate tables.

    Runs that differ in the content of their initial weights or training data have separate rows, labeled with the file.

    Raises InputError for an empty list of runs, a missing or damaged result.json, a classification run, runs with
    different validation data, and two runs with the same configuration and seed.
    """
    if not runs:
        raise InputError("runs must name at least one folder of a run, got none")
    results = {folder: _read(folder) for folder in runs}
    first, first_result = next(iter(results.items()))
    rows: list[_Row] = []
    seen: dict[tuple[int, int], Path] = {}
    for folder, result in results.items():
        same = _sha256(first_result, "validation_data") == _sha256(result, "validation_data")
        if not same or result["images"] != first_result["images"]:
            changed = not same and result["data"] == first_result["data"]
            raise InputError(
                f"runs must have the same validation data, got {first_result['data']}, {first_result['images']:,} "
                f"images ({first}), and {result['data']}, {result['images']:,} images ({folder})"
                + (", whose annotations differ" if changed else "")
            )
        index = next((i for i, row in enumerate(rows) if row.matches(result)), len(rows))
        if index == len(rows):
            rows.append(_Row(_without_seed(result["recipe"]), []))
        rows[index].results.append(result)
        earlier = seen.setdefault((index, result["recipe"]["seed"]), folder)
        if earlier != folder:
            raise InputError(f"runs must differ, got {earlier} and {folder} with the same recipe and seed")
    same_path = all(result["data"] == first_result["data"] for result in results.values())
    data = first_result["data"] if same_path else first_result["validation_data"]["name"]
    caption = _caption(rows, f"{data}, {first_result['images']:,} images")
    if format == "markdown":
        return f"{markdown_table(*_cells(rows, list(_KINDS)))}\n\n{caption}\n"
    return "\n".join(text_table(_cells(rows, [kind])) + "\n" for kind in _KINDS) + f"\n{caption}\n"


def _without_seed(recipe: dict[str, Any]) -> dict[str, Any]:
    ignored = ("seed", *DetectionRecipe.CHANGEABLE)
    return {name: value for name, value in recipe.items() if name not in ignored}


def _sha256(result: dict[str, Any], field: str) -> str | None:
    file = result[field]
    return None if file is None else file["sha256"]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RESULT
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{folder} has no {RESULT} to report: {error.strerror}") from error
    if (folder / RECIPE).is_file() and (task := read_recipe(folder / RECIPE).task) != "detection":
        raise InputError(f"{folder} must be a detection run, got a {task} run, whose scores are in its {RESULT}")
    parse_json(content, _Result, f"{path} is damaged")
    result: dict[str, Any] = json.loads(content)  # with all fields
    with reraise_as_input_error(f"{path} is damaged"):
        for kind, name in product(_KINDS, _NAMES):
            if name not in result[kind]:
                raise InputError(f"{kind}.{name} must be a number or None, got nothing")
    return result


def _cells(rows: Sequence[_Row], kinds: Sequence[str]) -> list[list[str]]:
    """The cells of the header and of each row."""
    averages = [f"{_KINDS[kind]} {name}" for kind in kinds for name in _NAMES]
    lines = [["model", "params (M)", "seeds", *averages]]
    for row, label in zip(rows, _labels(rows), strict=True):
        parameters = f"{row.results[0]['parameters'] / 1e6:.1f}"
        cells = [_cell(row, rows[0], kind, name) for kind in kinds for name in _NAMES]
        lines.append([label, parameters, str(len(row.results)), *cells])
    return lines


def _cell(row: _Row, baseline: _Row, kind: str, name: str) -> str:
    values, baseline_values = row.values(kind, name), baseline.values(kind, name)
    if row is baseline or not values or not baseline_values:
        return format_mean(values)
    return f"{format_mean(values)} ({statistics.fmean(values) - statistics.fmean(baseline_values):+z.1f})"


def _labels(rows: Sequence[_Row]) -> list[str]:
    """Labels from model, options, initial weights and, if the rows differ in it, training data.

    If labels are equal, the recipe fields in which the rows differ are added.
    """
    recipes = [row.recipe for row in rows]
    base_labels = [" ".join([recipe["model"], *_format_options(recipe["model_options"])]) for recipe in recipes]
    base_labels = [
        f"{label} from {name}" if name else label
        for label, name in zip(base_labels, _file_names(rows, "initial_weights"), strict=True)
    ]
    if len({_sha256(row.results[0], "training_data") for row in rows} - {None}) > 1:
        base_labels = [
            f"{label} trained on {name}" if name else label
            for label, name in zip(base_labels, _file_names(rows, "training_data"), strict=True)
        ]
    labels = []
    for recipe, label in zip(recipes, base_labels, strict=True):
        same = [other for other, other_label in zip(recipes, base_labels, strict=True) if other_label == label]
        differing = {name: value for name, value in recipe.items() if any(other.get(name) != value for other in same)}
        labels.append(" ".join([label, *_format_options(differing)]))
    return labels


def _file_names(rows: Sequence[_Row], field: str) -> list[str | None]:
    """The file name of each row; with the first digits of its SHA-256 if different files share the name."""
    files = [row.results[0].get(field) for row in rows]
    hashes = defaultdict(set)
    for file in filter(None, files):
        hashes[file["name"]].add(file["sha256"])
    ambiguous = {name for name, digests in hashes.items() if len(digests) > 1}
    return [file and file["name"] + (f" ({file['sha256'][:8]})" if file["name"] in ambiguous else "") for file in files]


def _format_options(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def _caption(rows: Sequence[_Row], data: str) -> str:
    sentences = [f"Average precision in percent on {data}."]
    if len(rows) > 1:
        sentences.append("In brackets: difference to the first row.")
    if any(len(row.results) > 1 for row in rows):
        sentences.append("Mean ± std over seeds.")
    return " ".join(sentences)
