"""The average precision of finished runs as a table, in the order of the paper's Table 14."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from lambdanets.bounds import convert
from lambdanets.errors import InputError
from lambdanets.records import as_input_error, parse_json
from lambdanets.text_tables import markdown_table, text_table
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.recipe import renamed
from lambdanets.training.report import RESULT

Format = Literal["text", "markdown"]
_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
_KINDS = {"bbox": "box", "segm": "mask"}


class _Identified(TypedDict):
    name: str
    sha256: str


class _Recipe(TypedDict):
    model: str
    model_options: dict[str, Any]
    seed: int


class _Result(TypedDict):
    recipe: _Recipe
    bbox: dict[str, float | None]
    segm: dict[str, float | None]
    data: str
    images: int
    parameters: int
    # not in older ones
    first_weights: NotRequired[_Identified | None]
    training_data: NotRequired[_Identified | None]
    validation_data: NotRequired[_Identified | None]


@dataclass(frozen=True)
class _Row:
    """Runs that differ in the seed only."""

    recipe: dict[str, Any]
    results: list[dict[str, Any]]

    def takes(self, result: dict[str, Any]) -> bool:
        """Whether a run is of the row's recipe, began from the same weights and learnt from the same data."""
        one = self.results[0]
        return (
            self.recipe == _but_seed(result["recipe"])
            and _sha256(one, "first_weights") == _sha256(result, "first_weights")
            and _same_data(one, result, "training_data")
        )

    def values(self, kind: str, name: str) -> list[float]:
        """In percent, a value a seed; none where a run has none."""
        values = [result[kind][name] for result in self.results]
        return [] if None in values else [100 * value for value in values]


def report(runs: Sequence[Path], format: Format) -> str:
    """A row for each set-up in the folders of runs, in the order given: AP of boxes and of masks in percent.

    In brackets is the gain over the first row. Runs that differ in the seed only share a row: their mean and, after ±,
    the standard deviation over seeds. A dash stands where there is no object of a size. As text, boxes and masks are a
    table each.

    Runs that began from other weights or learnt from other data, by their content, do not share one; the row says from
    which.

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
        same = _same_data(of_first, result, "validation_data")
        if not same or result["images"] != of_first["images"]:
            changed = not same and result["data"] == of_first["data"]
            raise InputError(
                f"runs must be measured on the same data, got {of_first['data']}, {of_first['images']:,} images "
                f"({first}), and {result['data']}, {result['images']:,} images ({folder})"
                + (", whose annotations differ" if changed else "")
            )
        place = next((place for place, row in enumerate(rows) if row.takes(result)), len(rows))
        if place == len(rows):
            rows.append(_Row(_but_seed(result["recipe"]), []))
        rows[place].results.append(result)
        other = seen.setdefault((place, result["recipe"]["seed"]), folder)
        if other != folder:
            raise InputError(f"runs must differ, got {other} and {folder} of one recipe and seed")
    alike = all(result["data"] == of_first["data"] for result in results.values())
    data = of_first["data"] if alike else of_first["validation_data"]["name"]
    closing = _closing(rows, f"{data}, {of_first['images']:,} images")
    if format == "markdown":
        return f"{markdown_table(*_cells(rows, list(_KINDS)))}\n\n{closing}\n"
    return "\n".join(text_table(_cells(rows, [kind])) + "\n" for kind in _KINDS) + f"\n{closing}\n"


def _but_seed(recipe: dict[str, Any]) -> dict[str, Any]:
    ignored = ("seed", *DetectionRecipe.FREE)
    return {name: value for name, value in renamed(recipe, RESULT).items() if name not in ignored}


def _sha256(result: dict[str, Any], what: str) -> str | None:
    identified = result.get(what)
    return None if identified is None else identified["sha256"]


def _same_data(one: dict[str, Any], other: dict[str, Any], what: str) -> bool:
    """By content; by the path, as older results have no more, where one does not tell."""
    hashes = [_sha256(result, what) for result in (one, other)]
    return one["data"] == other["data"] if None in hashes else hashes[0] == hashes[1]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RESULT
    try:
        result = parse_json(path.read_bytes(), dict[str, Any], f"{path} is damaged")
    except OSError as error:
        raise InputError(f"{folder} has no {RESULT} to report: {error.strerror}") from error
    if "top1" in result:
        raise InputError(f"{folder} must be a run of detection, got one of classification")
    with as_input_error(f"{path} is damaged"):
        result = convert(result, _Result)
        for kind, name in product(_KINDS, _NAMES):
            if name not in result[kind]:
                raise InputError(f"{kind}.{name} must be a finite number or None, got nothing")
    return result


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
    """Model, its options, the weights it began from and, where rows differ in it, the data it learnt from; where two
    rows have the same, also what else of their recipes differs."""
    recipes = [row.recipe for row in rows]
    short = [" ".join([recipe["model"], *_written(recipe["model_options"])]) for recipe in recipes]
    short = [
        f"{label} from {name}" if name else label
        for label, name in zip(short, _named(rows, "first_weights"), strict=True)
    ]
    if len({_sha256(row.results[0], "training_data") for row in rows} - {None}) > 1:
        short = [
            f"{label} trained on {name}" if name else label
            for label, name in zip(short, _named(rows, "training_data"), strict=True)
        ]
    labels = []
    for recipe, label in zip(recipes, short, strict=True):
        alike = [other for other, its in zip(recipes, short, strict=True) if its == label]
        differing = {name: value for name, value in recipe.items() if any(other.get(name) != value for other in alike)}
        labels.append(" ".join([label, *_written(differing)]))
    return labels


def _named(rows: Sequence[_Row], what: str) -> list[str | None]:
    """The name of a file that each row took; where others have the same name, the beginning of its SHA-256 beside."""
    files = [row.results[0].get(what) for row in rows]
    hashes = defaultdict(set)
    for file in filter(None, files):
        hashes[file["name"]].add(file["sha256"])
    several = {name for name, its in hashes.items() if len(its) > 1}
    return [file and file["name"] + (f" ({file['sha256'][:8]})" if file["name"] in several else "") for file in files]


def _written(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def _closing(rows: Sequence[_Row], data: str) -> str:
    sentences = [f"Average precision in percent on {data}."]
    if len(rows) > 1:
        sentences.append("In brackets: gain over the first row.")
    if any(len(row.results) > 1 for row in rows):
        sentences.append("After ±: standard deviation over seeds.")
    return " ".join(sentences)
