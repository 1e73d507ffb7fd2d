"""`lambdanets detect`."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lambdanets.bounds import WORKERS_RANGE, Range, check
from lambdanets.cli.actions import run_action
from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import (
    ImageOutput,
    numbered_name,
    open_image_folder,
    process_images,
    report_unreadable,
)
from lambdanets.cli.training import TrainOptions, print_trained, train_named_recipe
from lambdanets.errors import InputError
from lambdanets.signals import deferred
from lambdanets.terminal import echo
from lambdanets.training.detection.recipe import DetectionRecipe

if TYPE_CHECKING:
    from PIL.Image import Image

    from lambdanets.inference.objects import Objects


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """Options of detect train."""

    recipe: DetectionRecipe


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
    return run_action("detect", ACTIONS, arguments)


def _train(arguments: list[str]) -> int:
    """Train a detector: lambdanets detect train [RECIPE] [--OPTION VALUE ...], or detect train --resume DIR."""
    outcome = train_named_recipe(
        Train,
        DetectionRecipe,
        arguments,
        summary="Train Mask R-CNN",
        quicktest_module="lambdanets.training.detection.quicktest",
    )
    if isinstance(outcome, int):
        return outcome
    result, folder = outcome
    if result:  # on rank 0
        figures = {"predictions": "predictions.png", "precision-recall": "precision_recall.png"}
        print_trained(result, folder, figures)
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
    from lambdanets.data.coco.sets import report_problems
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
    report_problems(**{"validation" if options.data is None else "data": images})
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

    if not options.images:
        raise InputError("IMAGES must be at least one file, folder or glob, got none")
    paths = find_images(options.images)
    with open_image_folder(options.out, JOURNAL):
        _detect(options, paths)
    return 0


def _detect(options: Predict, paths: list[Path]) -> None:
    """Detect objects, draw them and write the results. If interrupted, write the results so far."""
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

    def render(number: int, path: Path, image: "Image", detected: "Objects") -> ImageOutput:
        entry = {"id": number, "file_name": str(path), "height": image.height, "width": image.width}
        results = coco_results(detected, number, card.category_ids)
        figure = draw_predicted(image, detected, card.classes, options.score) if options.figures else None
        labels, objects = None, []
        if options.labels:
            labels, rows = label_and_measure(image, detected, card.classes, options.score)
            objects = [{"image": str(path), **row} for row in rows]
        name = numbered_name(number, path)

        def write() -> None:
            if figure is not None:
                with atomic_open(options.out / f"{name}.png") as file:
                    figure.save(file, "PNG")
            if labels is not None:
                save_label_image(labels, options.out / "labels" / label_image_name(name, labels))

        line = f"{path}  {int((detected.scores >= options.score).sum())} detections"
        return ImageOutput({"image": entry, "results": results, "objects": objects}, write, line)

    def finish(entries: list[Any]) -> None:
        images = [entry["image"] for entry in entries]
        results = [result for entry in entries for result in entry["results"]]
        index = {"images": images, "categories": [*map(dataclasses.asdict, detector.categories)]}
        write_json(options.out / "images.json", index)
        write_results(results, options.out / "results.json")
        if options.labels:
            values = [[row[column] for column in COLUMNS] for entry in entries for row in entry["objects"]]
            atomic_write(options.out / "objects.csv", encode_utf8(csv_table([COLUMNS, *values])))
        echo(f"{len(results)} detections in {len(images)} images, written to {options.out}")

    def predict(remaining: Sequence[Path]) -> Iterator[tuple[Path, "Image", "Objects"]]:
        return detect_files(detector, remaining, unreadable, options.batch_size, read=read, tile_size=tile_size)

    process_images(options.out / JOURNAL, identity, paths, predict, render, finish, unreadable)


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


JOURNAL = "detections"  # name of the journal in the folder of detect predict
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
