"""`lambdanets pseudo-label`."""

import dataclasses
import sys
import time
from pathlib import Path

import tyro

from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import report_unreadable
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
    """Images at a time; by default as many as fit into memory, up to 128."""
    workers: int = 0
    """Processes that decode images."""
    max_unreadable: int = 1000
    """Images that may be left out as they cannot be read; one more stops the command."""


NAMED = 10


@dataclasses.dataclass(frozen=True)
class Select:
    """Which pseudo-labels to select, and where to write them."""

    labels: tyro.conf.Positional[Path]
    """Folder of pseudo-labels: a table for each shard of images, and pseudo-labels.json."""
    out: tyro.conf.Positional[Path]
    """Folder for the selection: new, empty, or of the same selection, which then resumes."""
    confidence: float = 0.3
    """The least probability of its class that an image is kept with."""
    per_class: int | None = None
    """Images of each class: the most confident, or some repeated where there are fewer. By default all, once."""
    seed: int = 0
    """Decides which images are repeated, and which of equal confidence are kept."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets pseudo-label` and return its exit code."""
    if arguments and arguments[0] == "select":
        return _select(arguments[1:])
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
    report_unreadable(list(done.unreadable))
    rate = done.images / max(done.seconds, 1e-9)
    say(f"{done.images:,} images in {done.shards:,} shards labelled in {done.seconds:.0f} s, {rate:.0f} images/s")
    if done.elsewhere:
        say(f"{done.elsewhere:,} shards are under way in other processes")
    say(f"written to {options.out}; go on with: lambdanets pseudo-label select {options.out} SELECTION")
    return 0


def _select(arguments: list[str]) -> int:
    """Select, and print what came of it and what it took."""
    options = parse(
        Select,
        arguments,
        prog="lambdanets pseudo-label select",
        description="Select the labels that a student learns from: confident ones, balanced over classes.",
    )
    from lambdanets.training.pseudo_labels.selection import SELECTION, select

    started = time.monotonic()
    with resumable("finished tables are kept"):
        report = select(
            options.labels,
            options.out,
            confidence=options.confidence,
            per_class=options.per_class,
            seed=options.seed,
        )
    seconds = time.monotonic() - started
    say(f"{report.rows:,} rows, {report.confident:,} of confidence {options.confidence:g} or more")
    copies = f", {report.images:,} images with their copies" if options.per_class is not None else ""
    say(f"{report.kept:,} kept{copies}")
    for what, classes in ((f"fewer than {options.per_class}", report.short), ("none", report.without)):
        if classes:
            more = f" and {len(classes) - NAMED} more" if len(classes) > NAMED else ""
            say(f"classes with {what} ({len(classes)}): {', '.join(classes[:NAMED])}{more}")
    say(f"{seconds:.1f} s, {report.rows / max(seconds, 1e-9):,.0f} rows/s, peak memory {peak_memory() / 2**20:.0f} MiB")
    say(f"written to {options.out}: a table a shard, and {SELECTION}")
    return 0


def peak_memory() -> int:
    """The most bytes that this process held; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would count the process that started this one
        lines = status.read_text().splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
