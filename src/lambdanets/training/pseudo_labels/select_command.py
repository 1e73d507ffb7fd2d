"""`lambdanets pseudo-label select`: from options to a selection, and what came of it."""

import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from lambdanets.signals import resumable
from lambdanets.terminal import say

NAMED = 10


@dataclass(frozen=True)
class Select:
    """Which pseudo-labels to select, and where to write them."""

    labels: tyro.conf.Positional[Path]
    """Folder of pseudo-labels: a table for each shard of images, and pseudo-labels.json."""
    out: tyro.conf.Positional[Path]
    """Folder for the selection: new, empty, or of the same selection, which then goes on."""
    confidence: float = 0.3
    """The least probability of its class that an image is kept with."""
    per_class: int | None = None
    """Images of each class: the most confident, or some repeated where there are fewer. By default all, once."""
    seed: int = 0
    """Decides which images are repeated, and which of equal confidence are kept."""


def run_select(options: Select) -> int:
    """Select, print what came of it and what it took, and return the exit code. Raises InputError for options."""
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
