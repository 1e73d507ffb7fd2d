"""Shared by the commands for models that are trained on COCO-format annotations: `detect` and `segment`."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PositiveInt

from lambdanets.cli.image_results import report_unreadable
from lambdanets.cli.options import POSITIONAL
from lambdanets.errors import InputError
from lambdanets.folders import WorkFolder
from lambdanets.records import Workers, record
from lambdanets.signals import deferred
from lambdanets.terminal import echo

if TYPE_CHECKING:
    from lambdanets.inference.model_card import ModelCard


@record
class EvaluateOptions:
    """Options of detect evaluate and segment evaluate."""

    checkpoint: Annotated[Path, POSITIONAL]
    """Run folder, weights.safetensors, .ckpt file, or the name of a trained model of the package."""
    data: Path | None = None
    """COCO-format JSON file of instances with the same categories; by default the validation data of the run."""
    images: Path | None = None
    """Images of --data: a folder or an uncompressed tar."""
    out: Path | None = None
    """New folder for scores, results and figures; no files by default."""
    batch_size: PositiveInt = 1
    """Images per forward pass."""
    workers: Workers = 0
    """Data loading worker processes; 0 loads in the main process."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""

    def __post_init__(self) -> None:
        if self.out is not None:
            WorkFolder(self.out).is_started()  # before PyTorch is imported, which takes seconds


def evaluate_and_report(
    options: EvaluateOptions,
    card_type: "type[ModelCard]",
    evaluator: Callable[..., Any],
    print_scores: Callable[[Any], None],
    write: Callable[..., None],
) -> int:
    """Evaluate a model, print the scores, write files to --out, and return the exit code.

    card_type: card of the model. evaluator: class of its `Evaluator`. print_scores: prints an
    evaluation. write: writes the files of a model, images, an evaluation and a folder, in addition
    to scores.json.
    """
    if (options.data is None) != (options.images is None):
        raise InputError("data and images must be given together, got one without the other")
    folder = WorkFolder(options.out) if options.out is not None else None
    from lambdanets.data.coco.sets import report_problems
    from lambdanets.data.image_search import describe_classes, describe_left_out
    from lambdanets.inference.annotated_sets import open_evaluation_set
    from lambdanets.inference.loading import load_one_of
    from lambdanets.records import write_json

    model = load_one_of([card_type], options.checkpoint, options.device)
    images = open_evaluation_set(model, options.data, options.images)
    report_problems(**{"validation" if options.data is None else "data": images})
    classes = [category.name for category in images.categories]
    echo(describe_classes(classes), describe_left_out(images.problems.left_out))
    with folder.open() if folder is not None else contextlib.nullcontext():
        evaluation = evaluator(model, images).evaluate(options.batch_size, options.workers)
        report_unreadable(evaluation.unreadable)
        print_scores(evaluation)
        if options.out is not None:
            scores = {**evaluation.scores.to_dict(), "images": len(evaluation.readable)}
            with deferred():  # an incomplete folder could not be used again
                write_json(options.out / "scores.json", scores, 2)
                write(model, images, evaluation, options.out)
    return 0
