"""`lambdanets evaluate`."""

import contextlib
from inspect import signature
from pathlib import Path

from pydantic import PositiveInt

from lambdanets.cli.options import Device, Model, options_of_task, parse
from lambdanets.cli.predict import report_unreadable
from lambdanets.records import Workers, record
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder


@record
class EvaluateOptions:
    """Evaluate a model of any task on labeled images.

    Top-1 accuracy of a classifier, average precision (AP) of a detector, Dice, IoU and boundary F1 of a segmenter.
    """

    model: Model
    data: str | None = None
    """Labeled images; by default those of the run. For a classifier, a dataset with the same classes: its validation
    split or, if it has none, what was held out in training, or all images of another dataset. For others, a COCO-format
    JSON file of instances with the same categories."""
    images: str | None = None
    """Detection and segmentation: the images of --data, a folder or an uncompressed tar."""
    data_root: str | None = None
    """Classification: root folder of a timm dataset, such as torch/cifar10."""
    out: Path | None = None
    """New folder for tables of scores and figures; no files by default."""
    batch_size: PositiveInt | None = None
    """Images per forward pass; by default 1, and 32 for a classifier."""
    workers: Workers = 0
    """Data loading worker processes; 0 loads in the main process."""
    device: Device = None


def main(arguments: list[str]) -> None:
    """Run `lambdanets evaluate`."""
    options = parse(EvaluateOptions, arguments, "evaluate")
    if options.out is not None:
        WorkFolder(options.out).is_started()  # before PyTorch is imported, which takes seconds
    from lambdanets.data.image_search import describe_classes, describe_left_out
    from lambdanets.inference.loading import load
    from lambdanets.models.weights import LAST_CHECKPOINT, find_weights

    source = find_weights(options.model)
    echo(*([f"unfinished run, weights: {source.file}"] if source.file.match(LAST_CHECKPOINT) else []))
    model = load(source, device=options.device)
    names, known = ("data", "images", "data_root"), signature(model.evaluator).parameters
    evaluator = model.evaluator(**options_of_task(options, names, known, model.card.task))
    echo(*([f"images: {evaluator.source}"] if evaluator.source else []))
    echo(describe_classes(model.card.classes), describe_left_out(evaluator.left_out))
    with contextlib.nullcontext() if options.out is None else WorkFolder(options.out).open():
        evaluation = evaluator.evaluate(batch_size=options.batch_size, workers=options.workers)
        report_unreadable(evaluation.unreadable)
        echo(evaluation.counts, *evaluation.lines)
        if options.out is not None:
            evaluator.write_evaluation(evaluation, options.out)
            echo(f"scores and figures: {options.out}")
