"""`lambdanets evaluate`."""

import dataclasses
from pathlib import Path

import tyro

from lambdanets.arguments import parse
from lambdanets.cli.runs import tell_unreadable
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


def main(arguments: list[str]) -> int:
    """Run `lambdanets evaluate` and return its exit code."""
    options = parse(Evaluate, arguments, prog="lambdanets evaluate", description="Measure a trained model's top-1.")
    from lambdanets.training.classification import evaluation
    from lambdanets.training.classification.classifier import load_classifier

    classifier = load_classifier(options.checkpoint, options.model)
    judgement = evaluation.evaluate(classifier, options.data, options.data_root)
    tell_unreadable(judgement.unreadable)
    say(f"{len(judgement.labels)} images, {int((judgement.labels == judgement.predicted).sum())} right")
    say(f"top-1 {judgement.top1:.4f}")
    return 0
