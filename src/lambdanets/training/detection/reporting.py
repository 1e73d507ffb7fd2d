"""The average precision of finished runs as a table, in the order of the paper's Table 14."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lambdanets.columns import columns
from lambdanets.errors import InputError
from lambdanets.training.recipe import fits
from lambdanets.training.report import RESULT

Format = Literal["text", "markdown"]
_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
_KINDS = {"bbox": "box", "segm": "mask"}
# What a run's result.json is read for.
_SHOWN = {
    "recipe": dict,
    "bbox": dict[str, float | None],
    "segm": dict[str, float | None],
    "data": str,
    "images": int,
    "parameters": int,
}
_OF_RECIPE = {"model": str, "model_options": dict, "seed": int}


@dataclass(frozen=True)
class _Row:
    """Runs that differ in the seed only."""

    recipe: dict[str, Any]
    results: list[dict[str, Any]]

    def values(self, kind: str, name: str) -> list[float]:
        """In percent, a value a seed; none where a run has none."""
        values = [result[kind][name] for result in self.results]
        return [] if None in values else [100 * value for value in values]


def report(runs: Sequence[Path], format: Format) -> str:
    """A row for each set-up in the folders of runs, in the order given: AP of boxes and of masks in percent.

    In brackets is the gain over the first row. Runs that differ in the seed only share a row: their mean and, after ±,
    the standard deviation over seeds. A dash stands where there is no object of a size. As text, boxes and masks are a
    table each.

    Raises InputError for no folder, a folder without result.json, a damaged one or a classification run's, runs on
    different data, and two runs of one set-up and seed.
    """
    if not runs:
        raise InputError("runs must name at least one folder of a run, got none")
    results = {folder: _read(folder) for folder in runs}
    first, of_first = next(iter(results.items()))
    rows: list[_Row] = []
    seen: dict[tuple[int, int], Path] = {}
    for folder, result in results.items():
        for key in ("data", "images"):
            if result[key] != of_first[key]:
                raise InputError(
                    f"runs must be measured on the same data, got {of_first['data']}, {of_first['images']:,} images "
                    f"({first}), and {result['data']}, {result['images']:,} images ({folder})"
                )
        recipe = {name: value for name, value in result["recipe"].items() if name != "seed"}
        place = next((place for place, row in enumerate(rows) if row.recipe == recipe), len(rows))
        if place == len(rows):
            rows.append(_Row(recipe, []))
        rows[place].results.append(result)
        other = seen.setdefault((place, result["recipe"]["seed"]), folder)
        if other != folder:
            raise InputError(f"runs must differ, got {other} and {folder} of one recipe and seed")
    closing = _closing(rows, f"{of_first['data']}, {of_first['images']:,} images")
    if format == "markdown":
        header, *body = _cells(rows, list(_KINDS))
        lines = [_markdown(line) for line in (header, ["---"] + ["---:"] * (len(header) - 1), *body)]
        return "\n".join([*lines, "", closing]) + "\n"
    return "\n".join(columns(_cells(rows, [kind])) + "\n" for kind in _KINDS) + f"\n{closing}\n"


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RESULT
    try:
        result = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{folder} has no {RESULT} to report: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it is no whole JSON") from error
    if isinstance(result, dict) and "top1" in result:
        raise InputError(f"{folder} must be a run of detection, got one of classification")
    recipe = result.get("recipe") if isinstance(result, dict) else None
    for content, expected in ((result, _SHOWN), (recipe, _OF_RECIPE)):
        for name, its_type in expected.items():
            if not isinstance(content, dict) or not fits(content.get(name), its_type):
                raise InputError(f"{path} is damaged: it has no {name} of a run of detection")
    for kind, words in _KINDS.items():
        for name in _NAMES:
            if name not in result[kind]:
                raise InputError(f"{path} is damaged: it has no {words} {name}")
    return dict(result)


def _cells(rows: Sequence[_Row], kinds: Sequence[str]) -> list[list[str]]:
    """A header and a line a row."""
    averages = [f"{_KINDS[kind]} {name}" for kind in kinds for name in _NAMES]
    lines = [["model", "params (M)", "seeds", *averages]]
    for row, label in zip(rows, _labels(rows), strict=True):
        parameters = f"{row.results[0]['parameters'] / 1e6:.1f}"
        figures = [_figure(row, rows[0], kind, name) for kind in kinds for name in _NAMES]
        lines.append([label, parameters, str(len(row.results)), *figures])
    return lines


def _figure(row: _Row, baseline: _Row, kind: str, name: str) -> str:
    values, of_baseline = row.values(kind, name), baseline.values(kind, name)
    if not values:
        return "-"
    mean = statistics.fmean(values)
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    if row is baseline or not of_baseline:
        return f"{mean:.1f}{deviation}"
    return f"{mean:.1f}{deviation} ({mean - statistics.fmean(of_baseline):+z.1f})"


def _labels(rows: Sequence[_Row]) -> list[str]:
    """Model and its options; where two rows have the same, also what else of their recipes differs."""
    recipes = [row.recipe for row in rows]
    short = [" ".join([recipe["model"], *_written(recipe["model_options"])]) for recipe in recipes]
    labels = []
    for recipe, label in zip(recipes, short, strict=True):
        alike = [other for other, its in zip(recipes, short, strict=True) if its == label]
        differing = {name: value for name, value in recipe.items() if any(other.get(name) != value for other in alike)}
        labels.append(" ".join([label, *_written(differing)]))
    return labels


def _written(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _closing(rows: Sequence[_Row], data: str) -> str:
    sentences = [f"Average precision in percent on {data}."]
    if len(rows) > 1:
        sentences.append("In brackets: gain over the first row.")
    if any(len(row.results) > 1 for row in rows):
        sentences.append("After ±: standard deviation over seeds.")
    return " ".join(sentences)
