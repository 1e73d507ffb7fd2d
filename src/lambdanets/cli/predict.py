"""`lambdanets predict`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lambdanets.bounds import Range, check
from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import images_journal, report_unreadable
from lambdanets.errors import InputError
from lambdanets.progress import track
from lambdanets.terminal import say

if TYPE_CHECKING:
    from lambdanets.inference.classifier import Classifier


@dataclasses.dataclass(frozen=True)
class Predict:
    """What to classify, and where to write it."""

    checkpoint: tyro.conf.Positional[Path]
    """Folder of a run, weights.safetensors, or a .ckpt file."""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES...")] = ()
    """Files, folders of images, and globs."""
    top: int = 3
    """Classes to name for each image."""
    out: Path = Path("predictions.jsonl")
    """File for one line of JSON per image; an existing file is refused. An interrupted command keeps its predictions in
    OUT.partial, and the same command resumes from there."""
    model: str | None = None
    """Load the weights into this model instead of the one they were trained in."""

    batch_size: int = 1
    """Images in one forward pass."""
    device: str | None = None
    """cpu, cuda, or a GPU by its number such as cuda:1; by default the GPU if there is one."""

    def __post_init__(self) -> None:
        check("top", self.top, int, Range(1))
        check("batch_size", self.batch_size, int, Range(1))


def main(arguments: list[str]) -> int:
    """Run `lambdanets predict` and return its exit code."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets predict",
        description="Classify image files, folders of them and globs; print a table and write JSON lines.",
    )
    from lambdanets.data.images import find_images
    from lambdanets.inference.classifier import load_classifier
    from lambdanets.locks import locked

    _refuse_existing(options.out)
    if not options.images:
        raise InputError("no images given; expected files, folders or globs after the checkpoint")
    paths = find_images(options.images)
    classifier = load_classifier(options.checkpoint, options.model, options.device)
    with locked(options.out.with_name(f".{options.out.name}.lock"), options.out):
        _refuse_existing(options.out)  # another process may have written it meanwhile
        count = _predict(classifier, options, paths)
    say(f"{count} images, written to {options.out}")
    return 0


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise InputError(f"{out} exists; name another file with --out, or remove it")


def _predict(classifier: "Classifier", options: Predict, paths: list[Path]) -> int:
    """Predict, show and write; predictions are kept in a journal until the file is written. Returns their number."""
    from lambdanets.files import atomic_write, printable_bytes
    from lambdanets.inference.classifier import predict_files
    from lambdanets.inference.weights import identified

    width = min(max(len(str(path)) for path in paths), 60)
    unreadable: list[str] = []
    identity = {"weights": identified(options.checkpoint)["sha256"], "options": [options.top, options.model]}
    with images_journal(options.out, identity, paths) as journal:
        done = {entry["path"] for entry in journal.entries}
        left = [path for path in paths if str(path) not in done]
        found = predict_files(classifier, left, unreadable, options.batch_size)
        for path, prediction in track(found, "predicting", len(left), "images", bar=not sys.stdout.isatty()):
            best = [(name, round(probability, 6)) for name, probability in prediction.top(options.top)]
            journal.add({"path": str(path), "top": [{"class": c, "probability": p} for c, p in best]})
            say(f"{path!s:<{width}}  " + "  ".join(f"{f'{c} {p:.3f}':<18}" for c, p in best).rstrip())
        report_unreadable(unreadable)
        if not journal.entries:
            raise InputError(f"none of the {len(paths)} images could be read")
        lines = [json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n" for entry in journal.entries]
        atomic_write(options.out, printable_bytes("".join(lines)))
        return len(lines)
