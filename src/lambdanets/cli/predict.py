"""`lambdanets predict`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import tyro

from lambdanets.arguments import parse
from lambdanets.cli.runs import tell_unreadable
from lambdanets.errors import InputError


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
    """File for one line of JSON an image; an existing file is refused."""
    model: str | None = None
    """Load the weights into this model instead of the one they were trained in."""


def main(arguments: list[str]) -> int:
    """Classify image files: lambdanets predict CHECKPOINT IMAGES... takes files, folders and globs."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets predict",
        description="Classify image files, folders of them and globs; print a table and write JSON lines.",
    )
    from lambdanets.files import printable_bytes, whole_file
    from lambdanets.training.classification import evaluation
    from lambdanets.training.classification.classifier import load_classifier
    from lambdanets.training.data.images import find_images

    if options.top < 1:
        raise InputError(f"top must be at least 1, got {options.top}")
    if options.out.exists():
        raise InputError(f"{options.out} exists; name another file with --out, or remove it")
    if not options.images:
        raise InputError("no images given; expected files, folders or globs after the checkpoint")
    paths = find_images(options.images)
    classifier = load_classifier(options.checkpoint, options.model)
    unreadable: list[str] = []
    width = min(max(len(str(path)) for path in paths), 60)
    predicted = 0
    with whole_file(options.out) as file:
        for prediction in evaluation.predict(classifier, paths, options.top, unreadable):
            predicted += 1
            best = list(zip(prediction.classes, prediction.probabilities, strict=True))
            line = {"path": str(prediction.path), "top": [{"class": c, "probability": p} for c, p in best]}
            file.write(printable_bytes(json.dumps(line, ensure_ascii=False) + "\n"))
            print(f"{prediction.path!s:<{width}}  " + "  ".join(f"{f'{c} {p:.3f}':<18}" for c, p in best).rstrip())
        tell_unreadable(unreadable)
        if not predicted:
            raise InputError(f"none of the {len(paths)} images could be read")
    print(f"{predicted} images, written to {options.out}")
    return 0
