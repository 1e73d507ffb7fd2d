"""`lambdanets segment`."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lambdanets.cli.actions import run_action
from lambdanets.cli.annotated_sets import EvaluateOptions, evaluate_and_report
from lambdanets.cli.image_results import (
    ImageOutput,
    PredictOptions,
    numbered_name,
    open_image_folder,
    process_images,
)
from lambdanets.cli.options import parse
from lambdanets.cli.training import parse_train_command, train_and_report
from lambdanets.records import TileSize, record
from lambdanets.terminal import echo
from lambdanets.training.segmentation.recipe import SegmentationRecipe

if TYPE_CHECKING:
    from PIL.Image import Image

    from lambdanets.data.coco.images import AnnotatedImages
    from lambdanets.inference.segmentation import SegmentationEvaluation
    from lambdanets.inference.segmenter import Segmentation, Segmenter


@record
class Predict(PredictOptions):
    """Options of segment predict."""

    out: Path = Path("segmentations")
    """New folder for classes.csv, and a semantic mask and a figure per image. The same command resumes."""
    figures: bool = True
    """Draw the classes over each image."""
    tile_size: TileSize | Literal[0] = 0
    """Side in pixels of overlapping tiles for images of more than two tiles; 0, the default, for no tiles, which needs
    about 0.5 GB of memory per megapixel."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets segment` and return its exit code."""
    return run_action("segment", ACTIONS, arguments)


def _train(arguments: list[str]) -> int:
    """Train a U-Net: lambdanets segment train [RECIPE] [--OPTION VALUE ...], or segment train --resume DIR."""
    command = parse_train_command(SegmentationRecipe, arguments, "Train a network for semantic segmentation")
    figures = {"predictions": "predictions.png"}
    return train_and_report(command, figures, _print_scores)


def _evaluate(arguments: list[str]) -> int:
    """Evaluate a network: lambdanets segment evaluate CHECKPOINT [--data FILE --images DIR]."""
    options = parse(
        EvaluateOptions,
        arguments,
        prog="lambdanets segment evaluate",
        description="Evaluate Dice, IoU and boundary F1 per class, and their means without the background. --out gets "
        "scores.json and predictions.png.",
    )
    from lambdanets.inference.figures import draw_segmentations
    from lambdanets.inference.model_card import SegmenterCard
    from lambdanets.inference.segmentation import SegmentationEvaluator

    def print_evaluation(evaluation: "SegmentationEvaluation") -> None:
        echo(f"{len(evaluation.readable)} images")
        _print_scores(evaluation.scores.to_dict())

    def write(
        segmenter: "Segmenter", images: "AnnotatedImages", evaluation: "SegmentationEvaluation", folder: Path
    ) -> None:
        draw_segmentations(segmenter, images, evaluation.readable, folder)

    return evaluate_and_report(options, SegmenterCard, SegmentationEvaluator, print_evaluation, write)


def _predict(arguments: list[str]) -> int:
    """Segment image files: lambdanets segment predict CHECKPOINT IMAGES..."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets segment predict",
        description="Segment image files; write a table with the pixels of each class, and per image a figure and a "
        "semantic mask, an 8-bit image in which pixels of class i have the value i, and the background has 0.",
    )
    paths = options.find_images()
    with open_image_folder(options.out, JOURNAL):
        _segment(options, paths)
    return 0


def _segment(options: Predict, paths: list[Path]) -> None:
    """Segment images, draw the classes and write the table. If interrupted, the table has the images so far."""
    from PIL import Image

    from lambdanets.files import atomic_open, atomic_write, encode_utf8
    from lambdanets.inference.drawing import overlay_classes
    from lambdanets.inference.loading import load_one_of
    from lambdanets.inference.model_card import SegmenterCard
    from lambdanets.inference.segmentation import segment_files
    from lambdanets.models.weights import find_weights
    from lambdanets.text_tables import csv_table

    weights = find_weights(options.checkpoint)
    segmenter = load_one_of([SegmenterCard], weights, options.device)
    tile_size, reading = options.tile_size or None, options.reading(segmenter.card)
    identity = {"weights": weights.sha256(), "options": [options.figures, tile_size]} | reading
    unreadable: list[str] = []

    def predict(remaining: Sequence[Path]) -> Iterator[tuple[Path, "Image.Image", "Segmentation"]]:
        return segment_files(segmenter, remaining, unreadable, options.batch_size, tile_size=tile_size, **reading)

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
    from lambdanets.inference.evaluator import format_score
    from lambdanets.inference.segmentation_scores import SCORES
    from lambdanets.text_tables import text_table

    rows = [["class", *SCORES]]
    for row in (*scores["classes"], scores | {"name": "mean without background"}):
        rows.append([row["name"], *(format_score(row[score]) for score in SCORES)])
    echo(*text_table(rows).splitlines())
