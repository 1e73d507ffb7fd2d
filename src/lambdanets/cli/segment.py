"""`lambdanets segment`."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from lambdanets.training.segmentation.recipe import SegmentationRecipe

if TYPE_CHECKING:
    from PIL.Image import Image

    from lambdanets.inference.segmenter import Segmentation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """Options of segment train."""

    recipe: SegmentationRecipe


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Options of segment evaluate."""

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, weights.safetensors or .ckpt file."""
    data: Path | None = None
    """COCO-format JSON file of instances with the same categories; by default the validation data of the run."""
    images: Path | None = None
    """Images of --data: a folder or an uncompressed tar."""
    out: Path | None = None
    """New folder for scores.json and predictions.png; no files by default."""
    batch_size: int = 1
    """Images per forward pass; only images of equal size share a batch."""
    workers: int = 0
    """Data loading worker processes; 0 loads in the main process."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))
        check("workers", self.workers, int, WORKERS_RANGE)


@dataclasses.dataclass(frozen=True)
class Predict:
    """Options of segment predict."""

    checkpoint: tyro.conf.Positional[Path]
    """Run folder, weights.safetensors or .ckpt file."""
    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="(required)")
    ] = ()
    """Image files, folders and globs."""
    out: Path = Path("segmentations")
    """New folder for classes.csv, and a semantic mask and a figure per image. The same command resumes."""
    figures: bool = True
    """Draw the classes over each image."""
    batch_size: int = 1
    """Images per forward pass; only images of equal size share a batch."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))


def main(arguments: list[str]) -> int:
    """Run `lambdanets segment` and return its exit code."""
    return run_action("segment", ACTIONS, arguments)


def _train(arguments: list[str]) -> int:
    """Train a U-Net: lambdanets segment train [RECIPE] [--OPTION VALUE ...], or segment train --resume DIR."""
    outcome = train_named_recipe(
        Train,
        SegmentationRecipe,
        arguments,
        summary="Train a network for semantic segmentation",
        quicktest_module="lambdanets.training.segmentation.quicktest",
    )
    if isinstance(outcome, int):
        return outcome
    result, folder = outcome
    if result:  # on rank 0
        print_trained(result, folder, {"predictions": "predictions.png"})
        _print_scores(result)
    return 0


def _evaluate(arguments: list[str]) -> int:
    """Evaluate a network: lambdanets segment evaluate CHECKPOINT [--data FILE --images DIR]."""
    options = parse(
        Evaluate,
        arguments,
        prog="lambdanets segment evaluate",
        description="Evaluate Dice, IoU and boundary F1 per class, and their means without the background.",
    )
    from lambdanets.data.coco.sets import report_problems
    from lambdanets.folders import WorkFolder
    from lambdanets.inference.annotated_sets import open_evaluation_set
    from lambdanets.inference.segmentation import evaluate_segmenter
    from lambdanets.inference.segmentation_figures import draw_segmentations
    from lambdanets.inference.segmenter import load_segmenter
    from lambdanets.records import write_json

    if (options.data is None) != (options.images is None):
        raise InputError("data and images must be given together, got one without the other")
    folder = WorkFolder(options.out) if options.out is not None else None
    if folder is not None:
        folder.is_started()
    segmenter = load_segmenter(options.checkpoint, options.device)
    images = open_evaluation_set(segmenter, options.data, options.images)
    report_problems(**{"validation" if options.data is None else "data": images})
    with folder.open() if folder is not None else contextlib.nullcontext():
        evaluation = evaluate_segmenter(segmenter, images, options.batch_size, options.workers)
        report_unreadable(evaluation.unreadable)
        echo(f"{len(evaluation.readable)} images")
        scores = evaluation.scores.to_dict() | {"images": len(evaluation.readable)}
        _print_scores(scores)
        if options.out is not None:
            with deferred():  # an incomplete folder could not be used again
                write_json(options.out / "scores.json", scores, 2)
                draw_segmentations(segmenter, images, evaluation.readable, options.out)
    return 0


def _predict(arguments: list[str]) -> int:
    """Segment image files: lambdanets segment predict CHECKPOINT IMAGES..."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets segment predict",
        description="Segment image files; write a table with the pixels of each class, and per image a figure and a "
        "semantic mask, an 8-bit image in which pixels of class i have the value i, and the background has 0.",
    )
    from lambdanets.data.images import find_images

    if not options.images:
        raise InputError("IMAGES must be at least one file, folder or glob, got none")
    paths = find_images(options.images)
    with open_image_folder(options.out, JOURNAL):
        _segment(options, paths)
    return 0


def _segment(options: Predict, paths: list[Path]) -> None:
    """Segment images, draw the classes and write the table. If interrupted, the table has the images so far."""
    from PIL import Image

    from lambdanets.files import atomic_open, atomic_write, encode_utf8
    from lambdanets.inference.segmentation import segment_files
    from lambdanets.inference.segmentation_figures import overlay_classes
    from lambdanets.inference.segmenter import load_segmenter
    from lambdanets.inference.weights import file_identity
    from lambdanets.text_tables import csv_table

    segmenter = load_segmenter(options.checkpoint, options.device)
    identity = {"weights": file_identity(options.checkpoint)["sha256"], "options": [options.figures]}
    unreadable: list[str] = []

    def predict(remaining: Sequence[Path]) -> Iterator[tuple[Path, "Image.Image", "Segmentation"]]:
        return segment_files(segmenter, remaining, unreadable, options.batch_size)

    def render(number: int, path: Path, image: "Image.Image", segmentation: "Segmentation") -> ImageOutput:
        labels = segmentation.labels.numpy()
        figure = overlay_classes(image, labels) if options.figures else None
        name = f"{numbered_name(number, path)}.png"

        def write() -> None:
            for folder, output in ((options.out, figure), (options.out / "classes", Image.fromarray(labels))):
                if output is not None:
                    folder.mkdir(exist_ok=True)
                    with atomic_open(folder / name) as file:
                        output.save(file, "PNG")

        fractions = [f"{label} {count / labels.size:.1%}" for label, count in segmentation.pixels if count]
        counts = [count for _, count in segmentation.pixels]
        return ImageOutput({"pixels": counts}, write, f"{path}  {', '.join(fractions)}")

    def finish(entries: list[Any]) -> None:
        rows = [
            (entry["path"], label, name, pixels, f"{pixels / sum(entry['pixels']):.6f}")
            for entry in entries
            for label, (name, pixels) in enumerate(zip(segmenter.classes, entry["pixels"], strict=True))
        ]
        atomic_write(options.out / "classes.csv", encode_utf8(csv_table([COLUMNS, *rows])))
        echo(f"{len(entries)} images, written to {options.out}")

    process_images(options.out / JOURNAL, identity, paths, predict, render, finish, unreadable)


JOURNAL = "segmentations"  # name of the journal in the folder of segment predict
COLUMNS = ("image", "label", "class", "pixels", "fraction")  # of classes.csv
ACTIONS: dict[str, Callable[[list[str]], int]] = {"train": _train, "evaluate": _evaluate, "predict": _predict}


def _print_scores(scores: dict[str, Any]) -> None:
    """Print a table with the scores of each class, and the means without the background."""
    from lambdanets.inference.segmentation import format_score
    from lambdanets.inference.segmentation_scores import SCORES
    from lambdanets.text_tables import text_table

    rows = [["class", *SCORES]]
    for row in (*scores["classes"], scores | {"name": "mean without background"}):
        rows.append([row["name"], *(format_score(row[score]) for score in SCORES)])
    echo(*text_table(rows).splitlines())
