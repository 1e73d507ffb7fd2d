"""`lambdanets evaluate`."""

import contextlib
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import PositiveInt

from lambdanets.cli.options import POSITIONAL, parse_for_model
from lambdanets.cli.predict import report_unreadable
from lambdanets.records import Workers, record
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder

DESCRIPTION = """Evaluate a model of any task on labeled images: top-1 accuracy of a classifier, average precision (AP)
of a detector, Dice, IoU and boundary F1 of a segmenter."""


@record
class EvaluateOptions:
    """All tasks."""

    model: Annotated[str, POSITIONAL]
    """Run folder, weight file, hub folder, hf-hub:USER/NAME, or the name of a trained model, such as digits."""
    out: Path | None = None
    """New folder for tables of scores and figures; no files by default."""
    batch_size: PositiveInt | None = None
    """Images per forward pass; by default 1, and 32 for a classifier."""
    workers: Workers = 0
    """Data loading worker processes; 0 loads in the main process."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets evaluate` and return its exit code."""
    parse = partial(parse_for_model, EvaluateOptions, arguments, command="evaluate", description=DESCRIPTION)
    options = parse()[0]
    folder = WorkFolder(options.out) if options.out is not None else None
    if folder is not None:
        folder.is_started()  # before PyTorch is imported, which takes seconds
    from lambdanets.inference.loading import load

    model = load(options.model, device=options.device)
    evaluator = model.evaluator(**asdict(parse(task=model.card.task)[1]))
    echo(*evaluator.describe())
    with folder.open() if folder is not None else contextlib.nullcontext():
        evaluation = evaluator.evaluate(options.batch_size, options.workers)
        report_unreadable(evaluation.unreadable)
        echo(evaluation.counts(), *evaluation.lines())
        if options.out is not None:
            evaluator.write(evaluation, options.out)
            echo(f"scores and figures: {options.out}")
    return 0
