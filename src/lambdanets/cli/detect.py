"""`lambdanets detect`."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lambdanets.bounds import WORKERS_RANGE, Range, check
from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import images_journal, report_unreadable
from lambdanets.cli.training import parse_with_recipe, train
from lambdanets.errors import InputError, nearest
from lambdanets.progress import track
from lambdanets.signals import deferred
from lambdanets.terminal import echo
from lambdanets.training.detection.recipe import DetectionRecipe


@dataclasses.dataclass(frozen=True)
class Train:
    """Options of detect train."""

    recipe: DetectionRecipe
    run: Path | None = None
    """Run folder; an unfinished run of the same recipe in it is resumed. By default runs/RECIPE-DATE-TIME."""
    resume: Path | None = None
    """Run folder of an unfinished run to resume, with its own recipe."""
    devices: int | None = None
    """Number of GPUs, or of processes on the CPU, on this machine; 1 by default. Use torchrun for several machines."""
    quicktest: bool = False
    """Train a small version of the recipe on scattered digits, in less than a minute on two cores."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Options of detect evaluate."""

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, weights.safetensors, .ckpt file, or the name of a trained model of the package, such as nuclei."""
    data: Path | None = None
    """COCO-format JSON file of instances with the same categories; by default the validation data of the run."""
    images: Path | None = None
    """Images of --data: a folder or an uncompressed tar."""
    out: Path | None = None
    """New folder for scores.json, results.json (COCO results format) and figures; no files by default."""
    batch_size: int = 1
    """Images per forward pass; the masks of all of them are in memory at once."""
    workers: int = 0
    """Data loading worker processes; 0 loads in the main process."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))
        check("workers", self.workers, int, WORKERS_RANGE)


@dataclasses.dataclass(frozen=True)
class Predict:
    """Options of detect predict."""

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, weights.safetensors, .ckpt file, or the name of a trained model of the package, such as nuclei."""
    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="(required)")
    ] = ()
    """Image files, folders and globs."""
    out: Path = Path("detections")
    """New folder for results.json (COCO format), objects.csv, and a label image and a figure per image. The same
    command resumes."""
    score: float = 0.5
    """Minimum score of the detections in figures, label images and objects.csv; results.json has all detections."""
    figures: bool = True
    """Draw the detections of each image."""
    labels: bool = True
    """Write label images and objects.csv."""
    tile_size: int | None = None
    """Side in pixels of overlapping tiles for images of more than two tiles; 0 for no tiles; by default the model's."""
    channel: int | None = None
    """Channel or plane of the images, from 0; needed for files with several, except color images."""
    stretch: Literal["on", "off"] | None = None
    """Stretch intensities of more than 8 bits, from their 0.1 to their 99.9 percentile; by default as the model."""
    batch_size: int = 1
    """Images per forward pass; the masks of all of them are in memory at once."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))
        check("channel", self.channel, int | None, Range(0))
        if self.tile_size:
            check("tile_size", self.tile_size, int, Range(16))
        if not 0 <= self.score <= 1:
            raise InputError(f"score must be between 0 and 1, got {self.score}")


@dataclasses.dataclass(frozen=True)
class Report:
    """Options of detect report."""

    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUNS...", help_behavior_hint="(required)")
    ] = ()
    """Folders of finished runs; runs that differ only in the seed are averaged. Gains are relative to the first row."""
    format: Literal["text", "markdown"] = "text"
    """Output format."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets detect` and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<10}{(action.__doc__ or '').splitlines()[0]}" for name, action in ACTIONS.items()]
        echo("usage: lambdanets detect ACTION ...", "", *lines)
        return 0
    if arguments[0] not in ACTIONS:
        raise InputError(
            f"action must be one of {', '.join(ACTIONS)}, got {arguments[0]!r}{nearest(arguments[0], ACTIONS)}"
        )
    return ACTIONS[arguments[0]](arguments[1:])


def _train(arguments: list[str]) -> int:
    """Train a detector: lambdanets detect train [RECIPE] [--OPTION VALUE ...], or detect train --resume DIR."""
    from lambdanets.recipes import find_recipe, list_recipes

    has_recipe = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if has_recipe else "digits"
    recipe = find_recipe(name, DetectionRecipe)
    recipes = "\n".join(f"  {name}: {summary}" for name, summary in list_recipes(DetectionRecipe).items())
    options = parse_with_recipe(
        Train,
        recipe,
        arguments[1:] if has_recipe else arguments,
        prog=f"lambdanets detect train {name if has_recipe else '[RECIPE]'}",
        description=f"Train Mask R-CNN. RECIPE is a recipe below or a Python file; digits by default.\n\n{recipes}",
    )
    from lambdanets.training.detection.quicktest import quicktest_recipe

    changed = has_recipe or options.recipe != recipe
    outcome = train(options, ["detect", "train"], arguments, name=name, changed=changed, small=quicktest_recipe)
    if isinstance(outcome, int):
        return outcome
    result, folder = outcome
    if result:  # on rank 0
        report_unreadable(result["unreadable"])
        speed = f"{result['images_per_second']:.1f} images/s"
        echo(
            f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}",
            f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, {speed}",
            f"predictions:      {folder / 'predictions.png'}",
            f"precision-recall: {folder / 'precision_recall.png'}",
            f"curves:           {folder / 'curves.png'}",
            f"weights:          {folder / 'weights.safetensors'}",
        )
        _print_scores(result)
    return 0


def _evaluate(arguments: list[str]) -> int:
    """Evaluate a detector: lambdanets detect evaluate CHECKPOINT [--data FILE --images DIR]."""
    options = parse(
        Evaluate,
        arguments,
        prog="lambdanets detect evaluate",
        description="Evaluate the average precision (AP) of a trained detector.",
    )
    from lambdanets.data.coco.sets import report_findings
    from lambdanets.folders import WorkFolder
    from lambdanets.inference.annotated_sets import open_evaluation_set
    from lambdanets.inference.coco_results import write_results
    from lambdanets.inference.detection import evaluate_detector
    from lambdanets.inference.detection_figures import draw_detections
    from lambdanets.inference.detector import load_detector
    from lambdanets.records import write_json

    if (options.data is None) != (options.images is None):
        raise InputError("data and images must be given together, got one without the other")
    folder = WorkFolder(options.out) if options.out is not None else None
    if folder is not None:
        folder.is_started()
    detector = load_detector(options.checkpoint, options.device)
    images = open_evaluation_set(detector, options.data, options.images)
    report_findings(**{"validation" if options.data is None else "data": images})
    with folder.open() if folder is not None else contextlib.nullcontext():
        evaluation = evaluate_detector(detector, images, options.batch_size, options.workers)
        report_unreadable(evaluation.unreadable)
        echo(f"{len(evaluation.readable)} images, {len(evaluation.results)} detections")
        _print_scores(evaluation.scores.summary())
        if options.out is not None:
            with deferred():  # an incomplete folder could not be used again
                write_json(
                    options.out / "scores.json", {**evaluation.scores.to_dict(), "images": len(evaluation.readable)}, 2
                )
                write_results(evaluation.results, options.out / "results.json")
                draw_detections(detector, images, evaluation, options.out)
    return 0


def _predict(arguments: list[str]) -> int:
    """Detect objects in image files: lambdanets detect predict CHECKPOINT IMAGES..."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets detect predict",
        description="Detect objects in image files; write COCO-format results, a table of objects, and per image a "
        "figure and a label image, in which the pixels of object i have the value i.",
    )
    from lambdanets.data.images import find_images
    from lambdanets.folders import WorkFolder

    if not options.images:
        raise InputError("IMAGES must be at least one file, folder or glob, got none")
    paths = find_images(options.images)
    with WorkFolder(options.out, read_identity=lambda folder: {} if (folder / JOURNAL).is_file() else None).open():
        _detect(options, paths)
    return 0


def _detect(options: Predict, paths: list[Path]) -> None:
    """Detect objects, draw them and write the results; after an interruption, the results so far."""
    from lambdanets.data.microscopy import read_microscopy_image
    from lambdanets.files import atomic_open, atomic_write, encode_utf8
    from lambdanets.inference.coco_results import coco_results, write_results
    from lambdanets.inference.detection import detect_files
    from lambdanets.inference.detector import load_detector
    from lambdanets.inference.label_images import COLUMNS, label_and_measure, label_image_name, save_label_image
    from lambdanets.inference.weights import file_identity
    from lambdanets.records import write_json
    from lambdanets.text_tables import csv_table

    if options.figures:  # imports Matplotlib
        from lambdanets.inference.detection_figures import draw_predicted
    detector = load_detector(options.checkpoint, options.device)
    unreadable: list[str] = []
    card = detector.card
    tile_size = card.tile_size if options.tile_size is None else options.tile_size or None
    stretch = card.stretch if options.stretch is None else options.stretch == "on"
    read = functools.partial(read_microscopy_image, channel=options.channel, stretch=stretch)
    identity = {
        "weights": file_identity(options.checkpoint)["sha256"],
        "options": [options.score, options.figures, options.labels, tile_size, options.channel, stretch],
    }
    with images_journal(options.out / "detections", identity, paths) as journal:
        done = {entry["image"]["file_name"] for entry in journal.entries}
        remaining = [path for path in paths if str(path) not in done]
        try:
            files = detect_files(detector, remaining, unreadable, options.batch_size, read=read, tile_size=tile_size)
            for path, image, found in track(files, "predicting", len(remaining), "images", bar=not sys.stdout.isatty()):
                number = len(journal.entries) + 1
                entry = {"id": number, "file_name": str(path), "height": image.height, "width": image.width}
                results = coco_results(found, number, card.category_ids)
                figure = draw_predicted(image, found, card.classes, options.score) if options.figures else None
                labels, objects = None, []
                if options.labels:
                    labels, rows = label_and_measure(image, found, card.classes, options.score)
                    objects = [{"image": str(path), **row} for row in rows]
                name = f"{number:05}-{path.stem[:MAX_STEM]}"
                with deferred():  # so that figure, label image and journal entry are all written, or none
                    if figure is not None:
                        with atomic_open(options.out / f"{name}.png") as file:
                            figure.save(file, "PNG")
                    if labels is not None:
                        save_label_image(labels, options.out / "labels" / label_image_name(name, labels))
                    journal.add({"image": entry, "results": results, "objects": objects})
                echo(f"{path}  {int((found.scores >= options.score).sum())} detections")
        finally:
            report_unreadable(unreadable)
            if journal.entries:
                images = [entry["image"] for entry in journal.entries]
                results = [result for entry in journal.entries for result in entry["results"]]
                index = {"images": images, "categories": [*map(dataclasses.asdict, detector.categories)]}
                write_json(options.out / "images.json", index)
                write_results(results, options.out / "results.json")
                if options.labels:
                    table = [entry["objects"] for entry in journal.entries]
                    values = [[row[column] for column in COLUMNS] for rows in table for row in rows]
                    atomic_write(options.out / "objects.csv", encode_utf8(csv_table([COLUMNS, *values])))
                echo(f"{len(results)} detections in {len(images)} images, written to {options.out}")
        if not journal.entries:
            raise InputError(f"none of the {len(paths)} images could be read")


def _report(arguments: list[str]) -> int:
    """Compare finished runs as in the paper's Table 14: lambdanets detect report RUNS..."""
    options = parse(
        Report,
        arguments,
        prog="lambdanets detect report",
        description="Print box and mask AP of finished runs in percent, with gains over the first run.",
    )
    from lambdanets.evidence.detection_report import report

    if not options.runs:
        raise InputError("RUNS must be at least one folder of a finished run, got none")
    echo(*report(options.runs, options.format).split("\n"))
    return 0


JOURNAL = "detections.partial"  # in the folder of an interrupted detect predict
MAX_STEM = 50  # characters of an image's name in the name of its figure, since file names are limited to 255 bytes
ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "report": _report,
}


def _print_scores(summary: dict[str, Any]) -> None:
    for kind, label in (("bbox", "boxes"), ("segm", "masks")):
        scores = [f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in summary[kind].items()]
        echo(f"{label}  {'  '.join(scores)}")
