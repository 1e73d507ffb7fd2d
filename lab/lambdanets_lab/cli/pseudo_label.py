"""`lambdanets pseudo-label`."""

import shlex
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from lambdanets.cli.options import POSITIONAL, parse, program
from lambdanets.cli.predict import report_unreadable
from lambdanets.errors import first_few
from lambdanets.records import Workers, record
from lambdanets.signals import resumable
from lambdanets.terminal import echo, plural


@record
class Label:
    """Label images in shards with a teacher; write one table per shard.

    Then select the labels to train on with: lambdanets pseudo-label select.
    """

    teacher: Annotated[Path, POSITIONAL]
    """Trained classifier: a model as for predict."""
    shards: Annotated[str, POSITIONAL]
    """Folder or URL of shards; their training images are labeled, and existing labels ignored."""
    out: Annotated[Path, POSITIONAL]
    """Folder for the labels. The same command resumes; several processes may work on one folder."""
    top: PositiveInt = 5
    """Number of most probable classes to keep per image."""
    batch_size: PositiveInt = 128
    """Images per forward pass."""
    workers: Workers = 0
    """Data loading worker processes; 0 loads in the main process."""
    max_unreadable: NonNegativeInt = 1000
    """Maximum number of unreadable images, which are skipped."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; by default the GPU, if there is one, or one per torchrun process."""


@record
class Select:
    """Select confident pseudo-labels, balanced over classes, to train a student on."""

    labels: Annotated[Path, POSITIONAL]
    """Folder of pseudo-labels, written by lambdanets pseudo-label."""
    out: Annotated[Path, POSITIONAL]
    """New folder for the selection; the same command resumes an interrupted one."""
    confidence: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Minimum probability of an image's most probable class."""
    per_class: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    """Images per class: the most confident ones, repeated if there are fewer. By default all images, once each."""
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    """Random seed for the choice of repeated images and for ties in confidence."""


def main(arguments: list[str]) -> None:
    """Run `lambdanets pseudo-label`."""
    if arguments and arguments[0] == "select":
        _select(arguments[1:])
        return
    options = parse(Label, arguments, "pseudo-label")
    from lambdanets_lab.pseudo.labeling import label_shards

    started = time.monotonic()
    with resumable("the labels of finished shards are kept; run the same command to resume"):
        result = label_shards(**vars(options))
    report_unreadable(list(result.unreadable))
    seconds = max(time.monotonic() - started, 1e-9)
    speed = f"{seconds:.0f} s, {result.num_images / seconds:.0f} images/s"
    echo(f"{plural(result.num_images, 'image')} in {plural(result.num_shards, 'shard')} labeled in {speed}")
    if result.num_in_progress:
        echo(f"{plural(result.num_in_progress, 'shard')} in progress in other processes")
    if result.num_unlabeled:
        echo(f"{plural(result.num_unlabeled, 'shard')} without a readable image; repair them and run the command again")
    command = f"{program()} pseudo-label select {shlex.quote(str(options.out))}"
    echo(f"written to {options.out}; select with: {command} SELECTION")


def _select(arguments: list[str]) -> None:
    """Run `lambdanets pseudo-label select` and print statistics."""
    options = parse(Select, arguments, "pseudo-label select")
    from lambdanets_lab.pseudo.tables import SELECTION, select

    with resumable("finished tables are kept; run the same command to resume"):
        selection = select(
            options.labels, options.out, confidence=options.confidence, per_class=options.per_class, seed=options.seed
        )
    echo(f"{plural(selection.rows, 'row')}, {selection.confident:,} with confidence of at least {options.confidence:g}")
    copies = f", {selection.images:,} images counting repeats" if options.per_class is not None else ""
    echo(f"{selection.kept:,} kept{copies}")
    for count, classes in ((f"fewer than {options.per_class}", selection.short), ("none", selection.without)):
        if classes:
            echo(f"classes with {count} ({len(classes)}): {first_few(classes)}")
    echo(f"written to {options.out}: one table per shard, and {SELECTION}")
