"""Shared by commands that process image files: a journal to resume from, and a report of unreadable images."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lambdanets.journal import SUFFIX, Journal, open_journal
from lambdanets.signals import interruptible
from lambdanets.terminal import echo


@contextlib.contextmanager
def images_journal(out: Path, identity: dict[str, Any], paths: Sequence[Path]) -> Iterator[Journal]:
    """Open the journal OUT.partial of a command that processes images; print what is resumed, and how to resume.

    identity: options and weights on which the entries depend.
    """
    path = out.with_name(out.name + SUFFIX)
    images_hash = hashlib.sha256("\n".join(map(str, paths)).encode("utf-8", "surrogateescape")).hexdigest()
    journal = None
    try:
        with interruptible(), open_journal(path, identity | {"images": images_hash}) as journal:
            if journal.resumed:
                echo(f"resuming: {journal.resumed} of {len(paths)} images are done", file=sys.stderr)
            yield journal
    except KeyboardInterrupt:
        if journal is not None and journal.entries:
            done = f"stopped after {len(journal.entries)} of {len(paths)} images, saved in {path}"
            echo(f"{done}; run the same command to resume", file=sys.stderr)
        raise


def report_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        echo(f"skipped {len(unreadable)} unreadable images:", file=sys.stderr)
        echo(*(f"  {message}" for message in unreadable), file=sys.stderr)
