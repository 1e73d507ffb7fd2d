"""Shared by commands that process image files: a journal to resume from, and a report of unreadable images."""

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from lambdanets.cli.options import POSITIONAL
from lambdanets.errors import InputError
from lambdanets.folders import WorkFolder
from lambdanets.journal import SUFFIX, Journal, open_journal
from lambdanets.progress import track
from lambdanets.records import record
from lambdanets.signals import deferred, interruptible
from lambdanets.terminal import echo

if TYPE_CHECKING:
    from lambdanets.inference.model_card import ModelCard

MAX_STEM = 50  # characters of an image's name in the names of its output files


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
            if journal.num_resumed:
                echo(f"resuming: {journal.num_resumed} of {len(paths)} images are done", file=sys.stderr)
            yield journal
    except KeyboardInterrupt:
        if journal is not None and journal.entries:
            done = f"stopped after {len(journal.entries)} of {len(paths)} images, saved in {path}"
            echo(f"{done}; run the same command to resume", file=sys.stderr)
        raise


@record
class PredictOptions:
    """Options of all commands that predict on image files."""

    checkpoint: Annotated[Path, POSITIONAL]
    """Run folder, weights.safetensors, .ckpt file, or the name of a trained model of the package."""
    images: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Image files, folders and globs."""
    batch_size: PositiveInt = 1
    """Images per forward pass."""
    channel: NonNegativeInt | None = None
    """Channel or plane of the images, from 0; needed for files with several, except color images."""
    stretch: Literal["on", "off"] | None = None
    """Map the intensities of background and objects to those of the model's training images, for images of other
    instruments and of more than 8 bits; by default as the model."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""

    def reading(self, card: "ModelCard") -> dict[str, Any]:
        """Return how the images are read, as arguments of `predict_files` and others, and part of the identity."""
        return {"channel": self.channel, "stretch": card.stretch if self.stretch is None else self.stretch == "on"}

    def find_images(self) -> list[Path]:
        """Return the paths of all images, and print what was left out. Raises InputError if there are none."""
        from lambdanets.data.image_search import find_images, report_left_out

        if not self.images:
            raise InputError("IMAGES must be at least one file, folder or glob, got none")
        found = find_images(self.images)
        report_left_out(found)
        return found.paths


class ImageOutput(NamedTuple):
    """The output of a command for one image.

    entry: entry for the journal. write: writes the image's files. line: line to print.
    """

    entry: dict[str, Any]
    write: Callable[[], None]
    line: str


def open_image_folder(out: Path, name: str) -> contextlib.AbstractContextManager[Any]:
    """Create and lock the output folder of a command that processes images, or open it if it was interrupted.

    name: name of the journal, which an interrupted command leaves in the folder.
    """
    journal = name + SUFFIX
    return WorkFolder(out, read_identity=lambda folder: {} if (folder / journal).is_file() else None).open()


def process_images(
    out: Path,
    identity: dict[str, Any],
    paths: Sequence[Path],
    predict: Callable[[Sequence[Path]], Iterator[tuple[Any, ...]]],
    render: Callable[..., ImageOutput],
    finish: Callable[[list[Any]], None],
    unreadable: list[str],
) -> None:
    """Process the images that are not in the journal of `out` yet, and write their output.

    identity, paths: as for `images_journal`.
    predict: yields a tuple (path, ...) for each readable image of some paths.
    render: returns the output of an image, for its number, from 1, and its tuple from `predict`.
    finish: is called with all entries of the journal at the end, and after an interruption.
    unreadable: list to which `predict` appends messages.

    Signals are deferred until both the files of an image and its journal entry are written. Raises InputError if no
    image can be read.
    """
    with images_journal(out, identity, paths) as journal:
        done = {entry["path"] for entry in journal.entries}
        remaining = [path for path in paths if str(path) not in done]
        try:
            predictions = predict(remaining)
            for prediction in track(predictions, "predicting", len(remaining), "images", bar=not sys.stdout.isatty()):
                output = render(len(journal.entries) + 1, *prediction)
                with deferred():
                    output.write()
                    journal.add({"path": str(prediction[0])} | output.entry)
                echo(output.line)
        finally:
            report_unreadable(unreadable)
            if journal.entries:
                finish(journal.entries)
        if not journal.entries:
            raise InputError(f"none of the {len(paths)} images could be read")


def numbered_name(number: int, path: Path) -> str:
    """Return the name of an image in the names of its output files; file names are limited to 255 bytes."""
    return f"{number:05}-{path.stem[:MAX_STEM]}"


def report_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        echo(f"skipped {len(unreadable)} unreadable images:", file=sys.stderr)
        echo(*(f"  {message}" for message in unreadable), file=sys.stderr)
