"""What commands that go through images share: a journal to resume from, and what could not be read."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lambdanets.errors import InputError
from lambdanets.journal import SUFFIX, Journal, open_journal
from lambdanets.signals import interruptible
from lambdanets.terminal import say


@contextlib.contextmanager
def images_journal(out: Path, identity: dict[str, Any], paths: Sequence[Path]) -> Iterator[Journal]:
    """The journal OUT.partial of a command that goes through images; says what is resumed, and how to resume.

    identity: what its entries depend on beside the images.
    """
    path = out.with_name(out.name + SUFFIX)
    listed = hashlib.sha256("\n".join(map(str, paths)).encode("utf-8", "surrogateescape")).hexdigest()
    journal = None
    try:
        with interruptible(), open_journal(path, identity | {"images": listed}) as journal:
            if journal.resumed:
                say(f"resuming: {journal.resumed} of {len(paths)} images are done", file=sys.stderr)
            yield journal
    except KeyboardInterrupt:
        if journal is not None and journal.entries:
            done = f"stopped after {len(journal.entries)} of {len(paths)} images, kept in {path}"
            say(f"{done}; give the same command to resume", file=sys.stderr)
        raise


def refuse_full(folder: Path | None, begun_by: str | None = None) -> None:
    """Raise InputError for a folder with anything in it, but for hidden files and what the journal `begun_by` lists."""
    if folder is None or not folder.exists():
        return
    if not folder.is_dir() or not (
        (begun_by is not None and (folder / begun_by).is_file())
        or all(path.name.startswith(".") for path in folder.iterdir())
    ):
        raise InputError(f"{folder} holds something already; name a new folder with --out")


@contextlib.contextmanager
def new_folder(folder: Path | None) -> Iterator[None]:
    """Makes a folder for results, locked; before what takes long, so that nothing of it is lost. None: no folder."""
    from lambdanets.locks import locked_folder

    if folder is None:
        yield
        return
    with locked_folder(folder):
        refuse_full(folder)
        yield


def report_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        say(f"skipped {len(unreadable)} images that could not be read:", file=sys.stderr)
        say(*(f"  {sentence}" for sentence in unreadable), file=sys.stderr)
