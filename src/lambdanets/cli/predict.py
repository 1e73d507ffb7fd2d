"""`lambdanets predict`."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from lambdanets.cli.options import POSITIONAL, parse_all
from lambdanets.errors import InputError
from lambdanets.folders import WorkFolder, check_new_file
from lambdanets.inference.options import MaskOptions
from lambdanets.journal import SUFFIX, Journal, open_journal
from lambdanets.progress import track
from lambdanets.records import record
from lambdanets.registry import TASKS, find
from lambdanets.signals import deferred, interruptible
from lambdanets.terminal import echo

if TYPE_CHECKING:
    from lambdanets.inference.predictor import Predictor

DESCRIPTION = """Predict on image files, with a model of any task.

A classifier prints the most probable classes, and writes one line of JSON per image. A detector writes COCO-format
results, a table of objects, and per image a figure and a label image, in which the pixels of object i have the value i.
A segmenter writes a table with the pixels of each class, and per image a figure and a semantic mask, in which pixels of
class i have the value i, and the background has 0."""


@record
class PredictOptions:
    """All tasks."""

    checkpoint: Annotated[Path, POSITIONAL]
    """Run folder, weights.safetensors, .ckpt file, or the name of a trained model of the package."""
    images: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Image files, folders and globs."""
    out: Path | None = None
    """New file in JSON Lines format of a classifier, by default predictions.jsonl; new folder of other models, by
    default detections or segmentations. The same command resumes an interrupted one."""
    batch_size: PositiveInt = 1
    """Images, or tiles of an image, per forward pass."""
    channel: NonNegativeInt | None = None
    """Channel or plane of the images, from 0; needed for files with several, except color images."""
    stretch: Literal["on", "off"] | None = None
    """Map the intensities of background and objects to those of the model's training images, for images of other
    instruments and of more than 8 bits; by default as the model."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1; the GPU, if there is one, by default."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets predict` and return its exit code."""
    kinds = {task: find(entry.predict_options) for task, entry in TASKS.items()}
    if arguments and not arguments[0].startswith("-") and not {"-h", "--help"}.isdisjoint(arguments):
        kinds = {"": kinds[_task_of(arguments[0])]}
    options, *_ = _parse(arguments, tuple(dict.fromkeys(kinds.values())))  # before PyTorch is imported, which is slow
    paths = _find_images(options.images)
    from lambdanets.inference.loading import load
    from lambdanets.models.weights import find_weights

    weights = find_weights(options.checkpoint)
    predictor = load(weights, device=options.device)
    options, task_options = _parse(arguments, (kinds[predictor.card.task],))  # refuses the options of other tasks
    out = options.out or Path(predictor.output)
    reading = {
        "channel": options.channel,
        "stretch": predictor.card.stretch if options.stretch is None else options.stretch == "on",
    }
    if isinstance(task_options, MaskOptions):
        reading["tile_size"] = task_options.tile_size_for(getattr(predictor.card, "tile_size", None))
    identity = {"weights": weights.sha256()} | asdict(task_options) | reading
    with _output(out, is_file=bool(Path(predictor.output).suffix)) as journal_path:
        _predict(predictor, paths, journal_path, identity, reading, out, options, task_options)
    return 0


def _parse(arguments: list[str], kinds: tuple[type[Any], ...]) -> list[Any]:
    model = f" {arguments[0]}" if len(kinds) == 1 else ""
    return parse_all((PredictOptions, *kinds), arguments, prog=f"lambdanets predict{model}", description=DESCRIPTION)


def _task_of(model: str) -> str:
    from lambdanets.inference.loading import read_model
    from lambdanets.models.weights import find_weights

    return read_model(find_weights(model))[1].task


def _find_images(arguments: tuple[str, ...]) -> list[Path]:
    """Return the paths of all images, and print what was left out. Raises InputError if there are none."""
    from lambdanets.data.image_search import find_images, report_left_out

    if not arguments:
        raise InputError("IMAGES must be at least one file, folder or glob, got none")
    found = find_images(arguments)
    report_left_out(found)
    return found.paths


@contextlib.contextmanager
def _output(out: Path, *, is_file: bool) -> Iterator[Path]:
    """Lock the output, which must be new or interrupted work, and return the path of its journal."""
    journal = out.with_name(out.name + SUFFIX) if is_file else out / f"predictions{SUFFIX}"
    if not is_file:
        with WorkFolder(out, read_identity=lambda folder: {} if journal.is_file() else None).open():
            yield journal
        return
    from lambdanets.locks import locked

    check_new_file(out)
    with locked(out.with_name(f".{out.name}.lock"), out):
        check_new_file(out)  # another process may have written it in the meantime
        yield journal


def _predict(
    predictor: "Predictor",
    paths: Sequence[Path],
    journal_path: Path,
    identity: dict[str, Any],
    reading: dict[str, Any],
    out: Path,
    options: PredictOptions,
    task_options: Any,
) -> None:
    """Predict on the images that are not in the journal yet, and write the files of all images at the end."""
    width = min(max(len(str(path)) for path in paths), 60)
    unreadable: list[str] = []
    with _images_journal(journal_path, identity, paths) as journal:
        done = {row["path"] for row in journal.entries}
        remaining = [path for path in paths if str(path) not in done]
        predictions = predictor.predict_files(remaining, unreadable, options.batch_size, **reading)
        try:
            for path, image, prediction in track(
                predictions, "predicting", len(remaining), "images", bar=not sys.stdout.isatty()
            ):
                with deferred():
                    row = predictor.write(prediction, image, path, len(journal.entries) + 1, out, task_options)
                    journal.add({"path": str(path)} | row)
                echo(f"{path!s:<{width}}  {predictor.describe(row)}")
        finally:
            report_unreadable(unreadable)
        if not journal.entries:
            raise InputError(f"none of the {len(paths)} images could be read")
        echo(f"{predictor.finish(journal.entries, out, task_options)}, written to {out}")


@contextlib.contextmanager
def _images_journal(path: Path, identity: dict[str, Any], paths: Sequence[Path]) -> Iterator[Journal]:
    """Open the journal of a command that processes images; print what is resumed, and how to resume.

    identity: options and weights on which the entries depend.
    """
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


def report_unreadable(unreadable: Sequence[str]) -> None:
    """Print how many images were skipped, and why."""
    if unreadable:
        echo(f"skipped {len(unreadable)} unreadable images:", file=sys.stderr)
        echo(*(f"  {message}" for message in unreadable), file=sys.stderr)
