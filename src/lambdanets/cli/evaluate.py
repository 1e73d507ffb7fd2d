"""`lambdanets evaluate`."""

import contextlib
from pathlib import Path
from typing import Annotated

from pydantic import PositiveInt

from lambdanets.cli.image_results import report_unreadable
from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.folders import WorkFolder
from lambdanets.records import Workers, record
from lambdanets.signals import deferred
from lambdanets.terminal import echo


@record
class Evaluate:
    """Options of evaluate."""

    checkpoint: Annotated[Path, POSITIONAL]
    """Run folder, weights.safetensors, .ckpt file, or the name of a trained model of the package, such as digits."""
    data: str | None = None
    """Dataset with the same classes: its validation split, or all images if it has none; by default that of the run."""
    data_root: str | None = None
    """Root folder of a timm dataset, such as torch/cifar10."""
    out: Path | None = None
    """New folder for per_class_accuracy.csv, confusion_matrix.csv and .png; no files by default."""
    batch_size: PositiveInt | None = None
    """Images per forward pass; the most that fit into memory, up to 128, by default."""
    workers: Workers = 0
    """Data loading worker processes; 0 loads in the main process."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets evaluate` and return its exit code."""
    options = parse(
        Evaluate,
        arguments,
        prog="lambdanets evaluate",
        description="Evaluate a classifier: top-1 accuracy; with --out, also per-class accuracy and confusion matrix.",
    )
    folder = WorkFolder(options.out) if options.out is not None else None
    if folder is not None:
        folder.is_started()  # before PyTorch is imported, which takes seconds
    from lambdanets.data.image_search import describe_classes, describe_left_out
    from lambdanets.inference import classification
    from lambdanets.inference.loading import load_one_of
    from lambdanets.inference.model_card import ClassifierCard

    classifier = load_one_of([ClassifierCard], options.checkpoint, options.device)
    with folder.open() if folder is not None else contextlib.nullcontext():
        evaluation = classification.evaluate(
            classifier, options.data, options.data_root, batch_size=options.batch_size, workers=options.workers
        )
        report_unreadable(evaluation.unreadable)
        echo(f"images: {evaluation.source}")
        echo(describe_classes(evaluation.classes), describe_left_out(evaluation.left_out))
        echo(f"{len(evaluation.labels)} images, {int((evaluation.labels == evaluation.predicted).sum())} correct")
        echo(f"top-1 {evaluation.top1:.4f}")
        if options.out is not None:
            from lambdanets.inference.figures import write_confusion

            with deferred():  # an incomplete folder could not be used again
                write_confusion(evaluation, options.out)
            echo(f"per-class accuracy and confusion matrix: {options.out}")
    return 0
