"""`lambdanets evaluate`."""

import contextlib
import dataclasses
from pathlib import Path

import tyro

from lambdanets.bounds import WORKERS, Range, check
from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import report_unreadable
from lambdanets.signals import deferred
from lambdanets.terminal import say


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """What to evaluate, and on what."""

    checkpoint: tyro.conf.Positional[Path]
    """Folder of a run, weights.safetensors, or a .ckpt file."""
    data: str | None = None
    """Another data set with the same classes; by default the one trained on. Its validation part is classified."""
    data_root: str | None = None
    """Where a data set named for timm lies."""
    out: Path | None = None
    """New folder for per_class_accuracy.csv, confusion_matrix.csv and confusion_matrix.png; nothing is written if
    none."""
    model: str | None = None
    """Load the weights into this model instead of the one they were trained in."""
    batch_size: int | None = None
    """Images in one forward pass; by default as many as fit into memory, up to 128."""
    workers: int = 0
    """Processes that decode images; 0 for the command's own."""
    device: str | None = None
    """cpu, cuda, or a GPU by its number such as cuda:1; by default the GPU if there is one."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int | None, Range(1))
        check("workers", self.workers, int, WORKERS)


def main(arguments: list[str]) -> int:
    """Run `lambdanets evaluate` and return its exit code."""
    options = parse(
        Evaluate,
        arguments,
        prog="lambdanets evaluate",
        description="Measure a trained model's top-1, and with --out its accuracy by class and confusion matrix.",
    )
    from lambdanets.folders import WorkFolder
    from lambdanets.inference import classification
    from lambdanets.inference.classifier import load_classifier

    folder = WorkFolder(options.out) if options.out is not None else None
    if folder is not None:
        folder.is_begun()
    classifier = load_classifier(options.checkpoint, options.model, options.device)
    with folder.open() if folder is not None else contextlib.nullcontext():
        evaluation = classification.evaluate(
            classifier, options.data, options.data_root, batch_size=options.batch_size, workers=options.workers
        )
        report_unreadable(evaluation.unreadable)
        say(f"{len(evaluation.labels)} images, {int((evaluation.labels == evaluation.predicted).sum())} right")
        say(f"top-1 {evaluation.top1:.4f}")
        if options.out is not None:
            from lambdanets.inference.confusion import write_confusion

            with deferred():  # a folder with a part of it would be in the way
                write_confusion(evaluation, options.out)
            say(f"accuracy by class and confusion matrix: {options.out}")
    return 0
