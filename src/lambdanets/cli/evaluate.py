"""`lambdanets evaluate`."""

import dataclasses
from pathlib import Path

import tyro

from lambdanets.bounds import WORKERS, Range, check
from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import report_unreadable
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
    model: str | None = None
    """Load the weights into this model instead of the one they were trained in."""
    batch_size: int | None = None
    """Images at a time; by default as many as fit into memory, up to 128."""
    workers: int = 0
    """Processes that decode images; 0 for the command's own."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int | None, Range(1))
        check("workers", self.workers, int, WORKERS)


def main(arguments: list[str]) -> int:
    """Run `lambdanets evaluate` and return its exit code."""
    options = parse(Evaluate, arguments, prog="lambdanets evaluate", description="Measure a trained model's top-1.")
    from lambdanets.inference import classification
    from lambdanets.inference.classifier import load_classifier

    classifier = load_classifier(options.checkpoint, options.model)
    predictions = classification.evaluate(
        classifier, options.data, options.data_root, batch_size=options.batch_size, workers=options.workers
    )
    report_unreadable(predictions.unreadable)
    say(f"{len(predictions.labels)} images, {int((predictions.labels == predictions.predicted).sum())} right")
    say(f"top-1 {predictions.top1:.4f}")
    return 0
