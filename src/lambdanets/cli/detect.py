"""`lambdanets detect`."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lambdanets.cli.actions import run_action
from lambdanets.cli.annotated_sets import EvaluateOptions, evaluate_and_report
from lambdanets.cli.image_results import (
    ImageOutput,
    PredictOptions,
    numbered_name,
    open_image_folder,
    process_images,
)
from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.cli.training import parse_train_command, train_and_report
from lambdanets.errors import InputError
from lambdanets.records import Fraction, TileSize, record
from lambdanets.terminal import echo
from lambdanets.training.detection.recipe import DetectionRecipe

if TYPE_CHECKING:
    from PIL.Image import Image

    from lambdanets.data.coco.images import AnnotatedImages
    from lambdanets.inference.detection import DetectionEvaluation
    from lambdanets.inference.detector import Detector
    from lambdanets.inference.objects import Objects


@record
class Predict(PredictOptions):
    """Options of detect predict."""

    out: Path = Path("detections")
    """New folder for results.json (COCO format), objects.csv, and a label image and a figure per image. The same
    command resumes."""
    figures: bool = True
    """Draw the detections of each image."""
    score: Fraction = 0.5
    """Minimum score of the objects that are counted, drawn, and in label images and objects.csv; results.json has all
    detections."""
    labels: bool = True
    """Write label images and objects.csv."""
    tile_size: TileSize | Literal[0] | None = None
    """Side in pixels of overlapping tiles for images of more than two tiles; 0 for no tiles; by default the model's."""


@record
class Report:
    """Options of detect report."""

    runs: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """Folders of finished runs; runs that differ only in the seed are averaged. Gains are relative to the first row."""
    format: Literal["text", "markdown"] = "text"
    """Output format."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets detect` and return its exit code."""
    return run_action("detect", ACTIONS, arguments)


def _train(arguments: list[str]) -> int:
    """Train a detector: lambdanets detect train [RECIPE] [--OPTION VALUE ...], or detect train --resume DIR."""
    command = parse_train_command(DetectionRecipe, arguments, "Train Mask R-CNN")
    figures = {"predictions": "predictions.png", "precision-recall": "precision_recall.png"}
    return train_and_report(command, figures, _print_scores)


def _evaluate(arguments: list[str]) -> int:
    """Evaluate a detector: lambdanets detect evaluate CHECKPOINT [--data FILE --images DIR]."""
    options = parse(
        EvaluateOptions,
        arguments,
        prog="lambdanets detect evaluate",
        description="Evaluate the average precision (AP) of a trained detector. --out gets scores.json, results.json "
        "(COCO results format) and figures.",
    )
    from lambdanets.inference.coco_results import write_results
    from lambdanets.inference.detection import DetectionEvaluator
    from lambdanets.inference.figures import draw_detections
    from lambdanets.inference.model_card import DetectorCard

    def print_evaluation(evaluation: "DetectionEvaluation") -> None:
        echo(f"{len(evaluation.readable)} images, {len(evaluation.results)} detections")
        _print_scores(evaluation.scores.summary())

    def write(detector: "Detector", images: "AnnotatedImages", evaluation: "DetectionEvaluation", folder: Path) -> None:
        write_results(evaluation.results, folder / "results.json")
        draw_detections(detector, images, evaluation, folder)

    return evaluate_and_report(options, DetectorCard, DetectionEvaluator, print_evaluation, write)


def _predict(arguments: list[str]) -> int:
    """Detect objects in image files: lambdanets detect predict CHECKPOINT IMAGES..."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets detect predict",
        description="Detect objects in image files; write COCO-format results, a table of objects, and per image a "
        "figure and a label image, in which the pixels of object i have the value i.",
    )
    paths = options.find_images()
    with open_image_folder(options.out, JOURNAL):
        _detect(options, paths)
    return 0


def _detect(options: Predict, paths: list[Path]) -> None:
    """Detect objects, draw them and write the results. If interrupted, write the results so far."""
    from lambdanets.files import atomic_open, atomic_write, encode_utf8
    from lambdanets.inference.coco_results import coco_results, write_results
    from lambdanets.inference.detection import detect_files
    from lambdanets.inference.label_images import (
        COLUMNS,
        label_and_measure,
        label_image_name,
        make_label_image,
        save_label_image,
    )
    from lambdanets.inference.loading import load_one_of
    from lambdanets.inference.model_card import DetectorCard
    from lambdanets.models.weights import find_weights
    from lambdanets.records import write_json
    from lambdanets.text_tables import csv_table

    if options.figures:  # imports Matplotlib
        from lambdanets.inference.drawing import draw_predicted
    weights = find_weights(options.checkpoint)
    detector = load_one_of([DetectorCard], weights, options.device)
    unreadable: list[str] = []
    card = detector.card
    tile_size = card.tile_size if options.tile_size is None else options.tile_size or None
    reading = options.reading(card)
    identity = {
        "weights": weights.sha256(),
        "options": [options.score, options.figures, options.labels, tile_size],
    } | reading

    def render(number: int, path: Path, image: "Image", detected: "Objects") -> ImageOutput:
        entry = {"id": number, "file_name": str(path), "height": image.height, "width": image.width}
        results = coco_results(detected, number, card.category_ids)
        _, counted = make_label_image(detected, options.score)
        visible = detected.select(counted.tolist())
        figure = draw_predicted(image, visible, card.classes, options.score) if options.figures else None
        labels, objects = None, []
        if options.labels:
            labels, rows = label_and_measure(image, visible, card.classes, options.score)
            objects = [{"image": str(path), **row} for row in rows]
        name = numbered_name(number, path)

        def write() -> None:
            if figure is not None:
                with atomic_open(options.out / f"{name}.png") as file:
                    figure.save(file, "PNG")
            if labels is not None:
                save_label_image(labels, options.out / "labels" / label_image_name(name, labels))

        line = f"{path}  {len(visible)} objects"
        return ImageOutput({"image": entry, "results": results, "objects": objects, "count": len(visible)}, write, line)

    def finish(entries: list[Any]) -> None:
        images = [entry["image"] for entry in entries]
        results = [result for entry in entries for result in entry["results"]]
        index = {"images": images, "categories": [*map(dataclasses.asdict, detector.categories)]}
        write_json(options.out / "images.json", index)
        write_results(results, options.out / "results.json")
        if options.labels:
            values = [[row[column] for column in COLUMNS] for entry in entries for row in entry["objects"]]
            atomic_write(options.out / "objects.csv", encode_utf8(csv_table([COLUMNS, *values])))
        count = sum(entry["count"] for entry in entries)
        echo(
            f"{count} objects with a score of at least {options.score:g}, not completely covered by others, in "
            f"{len(images)} images; {len(results)} detections of any score in results.json; written to {options.out}"
        )

    def predict(remaining: Sequence[Path]) -> Iterator[tuple[Path, "Image", "Objects"]]:
        return detect_files(detector, remaining, unreadable, options.batch_size, tile_size=tile_size, **reading)

    process_images(options.out / JOURNAL, identity, paths, predict, render, finish, unreadable)


def _report(arguments: list[str]) -> int:
    """Compare finished runs as in the paper's Table 14: lambdanets detect report RUNS..."""
    options = parse(
        Report,
        arguments,
        prog="lambdanets detect report",
        description="Print box and mask AP of finished runs in percent, with gains over the first run.",
    )
    if not options.runs:
        raise InputError("RUNS must be at least one folder of a finished run, got none")
    report = importlib.import_module("lambdanets_lab.detection_report").report
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
