"""`lambdanets predict`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from lambdanets.cli.image_results import PredictOptions, images_journal, report_unreadable
from lambdanets.cli.options import parse
from lambdanets.errors import InputError
from lambdanets.folders import check_new_file
from lambdanets.progress import track
from lambdanets.records import record
from lambdanets.terminal import echo

if TYPE_CHECKING:
    from lambdanets.inference.classifier import Classifier


@record
class Predict(PredictOptions):
    """Options of predict."""

    top: PositiveInt = 3
    """Number of most probable classes to report per image."""
    out: Path = Path("predictions.jsonl")
    """New file in JSON Lines format, one line per image. The same command resumes an interrupted one."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets predict` and return its exit code."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets predict",
        description="Classify image files, print the most probable classes and write them to a file.",
    )
    check_new_file(options.out)  # before PyTorch is imported, which takes seconds
    paths = options.find_images()
    from lambdanets.inference.loading import load_one_of
    from lambdanets.inference.model_card import ClassifierCard
    from lambdanets.locks import locked
    from lambdanets.models.weights import find_weights

    weights = find_weights(options.checkpoint)
    classifier = load_one_of([ClassifierCard], weights, options.device)
    with locked(options.out.with_name(f".{options.out.name}.lock"), options.out):
        check_new_file(options.out)  # another process may have written it in the meantime
        count = _predict(classifier, weights.sha256(), options, paths)
    echo(f"{count} images, written to {options.out}")
    return 0


def _predict(classifier: "Classifier", weights: str, options: Predict, paths: list[Path]) -> int:
    """Classify images, print and write predictions, and return their number. A journal has the ones so far."""
    from lambdanets.files import atomic_write, encode_utf8
    from lambdanets.inference.classifier import predict_files

    width = min(max(len(str(path)) for path in paths), 60)
    unreadable: list[str] = []
    reading = options.reading(classifier.card)
    identity = {"weights": weights, "options": [options.top]} | reading
    with images_journal(options.out, identity, paths) as journal:
        done = {entry["path"] for entry in journal.entries}
        remaining = [path for path in paths if str(path) not in done]
        predictions = predict_files(classifier, remaining, unreadable, options.batch_size, **reading)
        for path, prediction in track(predictions, "predicting", len(remaining), "images", bar=not sys.stdout.isatty()):
            best = [(name, round(probability, 6)) for name, probability in prediction.top(options.top)]
            journal.add({"path": str(path), "top": [{"class": c, "probability": p} for c, p in best]})
            echo(f"{path!s:<{width}}  " + "  ".join(f"{f'{c} {p:.3f}':<18}" for c, p in best).rstrip())
        report_unreadable(unreadable)
        if not journal.entries:
            raise InputError(f"none of the {len(paths)} images could be read")
        lines = [json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n" for entry in journal.entries]
        atomic_write(options.out, encode_utf8("".join(lines)))
        return len(lines)
