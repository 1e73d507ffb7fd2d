"""`lambdanets pseudo-label`."""

import dataclasses
import sys
from pathlib import Path

import tyro

from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import tell_unreadable
from lambdanets.signals import resumable
from lambdanets.terminal import say


@dataclasses.dataclass(frozen=True)
class Label:
    """Whose labels, for which images, and where to write them."""

    teacher: tyro.conf.Positional[Path]
    """Folder of a run, weights.safetensors, or a .ckpt file."""
    shards: tyro.conf.Positional[str]
    """Images in shards: a folder or a URL. Those for training are labelled; classes of their own are not read."""
    out: tyro.conf.Positional[Path]
    """Folder for the labels; new, or begun with the same teacher, which is then helped or gone on with."""
    top: int = 5
    """Classes to keep for each image; all where there are fewer."""
    batch_size: int | None = None
    """Images at a time; by default as many as the teacher was trained with at a time, or fewer where memory would not
    hold them."""
    workers: int = 0
    """Processes that decode images."""
    max_unreadable: int = 1000
    """Images that may be left out as they cannot be read; one more stops the command."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets pseudo-label` and return its exit code."""
    if arguments and arguments[0] == "select":
        from lambdanets.training.pseudo_labels.select_command import Select, run_select

        description = "Select the labels that a student learns from: confident ones, balanced over classes."
        prog = "lambdanets pseudo-label select"
        return run_select(parse(Select, arguments[1:], prog=prog, description=description))
    description = (
        "Write a teacher's labels for images in shards, a table a shard. Any number of these commands may work on one "
        "folder. `lambdanets pseudo-label select` then selects those that a student learns from."
    )
    options = parse(Label, arguments, prog="lambdanets pseudo-label", description=description)
    from lambdanets.training.pseudo_labels.labelling import label_shards

    with resumable("the labels of finished shards are kept"):
        done = label_shards(
            options.teacher,
            options.shards,
            options.out,
            top=options.top,
            batch_size=options.batch_size,
            workers=options.workers,
            max_unreadable=options.max_unreadable,
            tell=lambda name, images, seconds: say(f"{name}: {images:,} images, {seconds:.1f} s", file=sys.stderr),
        )
    tell_unreadable(list(done.unreadable))
    rate = done.images / max(done.seconds, 1e-9)
    say(f"{done.images:,} images in {done.shards:,} shards labelled in {done.seconds:.0f} s, {rate:.0f} images/s")
    if done.elsewhere:
        say(f"{done.elsewhere:,} shards are under way in other processes")
    say(f"written to {options.out}; go on with: lambdanets pseudo-label select {options.out} SELECTION")
    return 0
