"""`lambdanets evaluate`."""

import contextlib
from pathlib import Path
from typing import Annotated

from pydantic import PositiveInt

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.cli.predict import report_unreadable
from lambdanets.records import Workers, record
from lambdanets.terminal import echo
from lambdanets.work import WorkFolder


@record
class Evaluate:
    """Options of evaluate."""

    model: Annotated[Path, POSITIONAL]
    """Run folder, weights.safetensors, .ckpt file, or the name of a trained model of the package, such as digits."""
    data: str | None = None
    """Labeled images; by default those of the run. For a classifier, a dataset with the same classes: its validation
    split, or all images if it has none. For others, a COCO-format JSON file of instances with the same categories."""
    images: str | None = None
    """For a detector or segmenter, the images of --data: a folder or an uncompressed tar."""
    data_root: str | None = None
    """For a classifier, root folder of a timm dataset, such as torch/cifar10."""
    out: Path | None = None
    """New folder for tables of scores and figures; no files by default."""
    batch_size: PositiveInt | None = None
    """Images per forward pass; by default 1, and for a classifier the most that fit into memory, up to 128."""
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
        description="Evaluate a model of any task on labeled images: top-1 accuracy of a classifier, average precision "
        "(AP) of a detector, Dice, IoU and boundary F1 of a segmenter.",
    )
    folder = WorkFolder(options.out) if options.out is not None else None
    if folder is not None:
        folder.is_started()  # before PyTorch is imported, which takes seconds
    from lambdanets.inference.loading import load

    model = load(options.model, device=options.device)
    evaluator = model.evaluator(options.data, images=options.images, data_root=options.data_root)
    echo(*evaluator.describe())
    with folder.open() if folder is not None else contextlib.nullcontext():
        evaluation = evaluator.evaluate(options.batch_size, options.workers)
        report_unreadable(evaluation.unreadable)
        echo(evaluation.counts(), *evaluation.lines())
        if options.out is not None:
            evaluator.write(evaluation, options.out)
            echo(f"scores and figures: {options.out}")
    return 0
