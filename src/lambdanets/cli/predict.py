"""`lambdanets predict`."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from lambdanets.cli.options import POSITIONAL, Device, Model, options_of_task, parse
from lambdanets.errors import InputError, first_few
from lambdanets.progress import track
from lambdanets.records import Fraction, TileSize, record
from lambdanets.signals import resumable
from lambdanets.terminal import echo, plural
from lambdanets.work import PARTIAL, Journal, WorkFolder, check_new_file, locked, open_journal

if TYPE_CHECKING:
    from lambdanets.inference.predictor import Predictor

_JOURNAL = f"predictions{PARTIAL}"  # in output folders, with the identity of the work in its first line
_OF_SOME_TASKS = ("top", "score", "figures", "tile_size")  # options
_MAX_STEM = 50  # characters of an image's name in the names of its files, which are limited to 255 bytes


@record
class PredictOptions:
    """Predict on image files, with a model of any task.

    A classifier prints the most probable classes, and writes one line of JSON per image. A detector writes COCO-format
    results, a table of objects, and per image a figure and a label image, in which the pixels of object i have the
    value i. A segmenter writes a table with the pixels of each class, and per image a figure and a semantic mask, in
    which pixels of class i have the value i, and the background has 0.
    """

    model: Model
    images: Annotated[tuple[str, ...], POSITIONAL]
    """Image files, folders and wildcards."""
    out: Path | None = None
    """New file of a classifier in JSON Lines format (.jsonl), by default predictions.jsonl; new folder of other models,
    by default detections or segmentations. The same command resumes an interrupted one."""
    batch_size: PositiveInt = 1
    """Images, or tiles of an image, per forward pass."""
    channel: NonNegativeInt | None = None
    """Channel or plane of the images, from 0; needed for files with several, except color images."""
    stretch: Literal["on", "off"] | None = None
    """Map the intensities of background and objects to those of the model's training images, for images of other
    instruments and of more than 8 bits; by default as the model."""
    top: PositiveInt | None = None
    """Classification: number of most probable classes to report per image; by default 3."""
    score: Fraction | None = None
    """Detection: minimum score of the objects that are counted, drawn, and in label images and objects.csv; by default
    0.5. results.json has all detections."""
    figures: bool | None = None
    """Detection and segmentation: draw the objects or classes of each image; the default."""
    tile_size: TileSize | Literal[0] | None = None
    """Detection and segmentation: side in pixels of overlapping tiles for images of more than two tiles; 0 for no
    tiles; by default the model's, if it has one. A segmentation without tiles needs about 0.5 GB of memory per
    megapixel."""
    device: Device = None


def main(arguments: list[str]) -> None:
    """Run `lambdanets predict`."""
    options = parse(PredictOptions, arguments, "predict")
    if (out := options.out) is not None:
        WorkFolder(out, file=_JOURNAL).is_started() if out.is_dir() else check_new_file(out)
    from lambdanets.data.image_search import describe_left_out, find_images

    find_images(options.images, accepts=bool)  # reports missing files before PyTorch is imported
    from lambdanets.inference.loading import load
    from lambdanets.models.weights import find_weights

    weights = find_weights(options.model)
    predictor: Any = load(weights, device=options.device)
    card, defaults = predictor.card, predictor.command_options
    task_options = {**defaults, **options_of_task(options, _OF_SOME_TASKS, defaults, card.task)}
    paths, left_out = find_images(options.images, predictor.accepts)
    if left_out:
        echo(describe_left_out(left_out), file=sys.stderr)
    stretch = card.stretch if options.stretch is None else options.stretch == "on"
    reading = {"channel": options.channel, "stretch": stretch}
    tiles = {"tile_size": predictor.tile_side(options.tile_size)} if "tile_size" in defaults else {}
    used = {**task_options, **reading, "tile_size": tiles.get("tile_size") or None}
    out = out or Path(predictor.default_out)
    with (
        _open_output(out, is_file=bool(Path(predictor.default_out).suffix)) as path,
        resumable(f"finished images are saved in {path}; run the same command to resume", path),
        open_journal(path, {"weights": weights.sha256(), **used}) as journal,
    ):
        _predict(predictor, paths, journal, out, task_options, reading, batch_size=options.batch_size, **tiles)


@contextlib.contextmanager
def _open_output(out: Path, *, is_file: bool) -> Iterator[Path]:
    """Lock the output, which must be new or interrupted work, and return the path of its journal."""
    if is_file:
        if out.suffix.lower() not in ("", ".jsonl"):
            advice = f"choose {out.with_suffix('.jsonl')}"
            raise InputError(f"--out must end in .jsonl, as it has one line of JSON per image, got {out}; {advice}")
        with locked(out.with_name(f".{out.name}.lock"), out):
            check_new_file(out)  # another process may have written it in the meantime
            yield out.with_name(out.name + PARTIAL)
    else:
        with WorkFolder(out, file=_JOURNAL).open():
            yield out / _JOURNAL


def _predict(
    predictor: "Predictor",
    paths: Sequence[Path],
    journal: Journal,
    out: Path,
    options: Mapping[str, Any],
    reading: Mapping[str, Any],
    **inference: Any,
) -> None:
    """Predict on the images that are not in the journal yet, and write the files of all images at the end.

    options: of `Predictor.write` and `finish`. reading: of `decode`. inference: of `stream`.

    The files of an image are written before its entry of the journal, so a killed command writes them again.
    """
    from lambdanets.data.images import UnreadableImage

    width = min(max(len(str(path)) for path in paths), 60)
    done = {row["path"] for row in journal.entries}
    if others := sorted(done.difference(map(str, paths))):
        raise InputError(f"{first_few(others)} of the command to resume must be among its images; choose another --out")
    if done:
        echo(f"resuming: {len(done)} of {plural(len(paths), 'image')} done", file=sys.stderr)
    remaining = [path for path in paths if str(path) not in done]
    unreadable: list[str] = []

    def read() -> Iterator[tuple[Path, Any]]:
        for path in remaining:
            try:
                yield path, next(predictor.decode(path, **reading))
            except UnreadableImage as error:
                unreadable.append(str(error))

    predictions = predictor.stream(read(), **inference)
    try:
        for path, image, prediction in track(predictions, "predicting", len(remaining), "images"):
            number = len(journal.entries) + 1
            row = predictor.write(prediction, image, number, out / f"{number:05}-{path.stem[:_MAX_STEM]}", options)
            journal.add({"path": str(path)} | row)
            echo(f"{path!s:<{width}}  {predictor.describe(row)}")
    finally:
        report_unreadable(unreadable)
    if not journal.entries:
        raise InputError(f"0 of {plural(len(paths), 'image')} could be read")
    echo(f"{predictor.finish(journal.entries, out, options)}, written to {out}")


def report_unreadable(unreadable: Sequence[str]) -> None:
    """Print how many images were skipped, and why."""
    if unreadable:
        lines = (f"  {message}" for message in unreadable)
        echo(f"skipped {plural(len(unreadable), 'unreadable image')}:", *lines, file=sys.stderr)
