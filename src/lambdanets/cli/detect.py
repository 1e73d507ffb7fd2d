"""`lambdanets detect`."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lambdanets.bounds import WORKERS, Range, check
from lambdanets.cli.arguments import parse
from lambdanets.cli.image_results import images_journal, report_unreadable
from lambdanets.cli.training import parse_with_recipe, train
from lambdanets.errors import InputError, nearest, need_packages
from lambdanets.progress import track
from lambdanets.signals import deferred
from lambdanets.terminal import say
from lambdanets.training.detection.recipe import DetectionRecipe


@dataclasses.dataclass(frozen=True)
class Train:
    """A recipe's fields, and where the run goes."""

    recipe: tyro.conf.OmitArgPrefixes[DetectionRecipe]
    run: Path | None = None
    """Folder the run leaves: new, empty, or of an unfinished run of the same recipe, which goes on. By default
    runs/RECIPE-DATE-TIME."""
    devices: int | None = None
    """Processes to train with on this machine, each with a GPU of its own where there are some; torchrun starts more
    machines."""
    quicktest: bool = False
    """Train the recipe made small, on scattered digits, in less than a minute on two cores."""
    resume: Path | None = None
    """Folder of an unfinished run to go on with, by the recipe it was started with."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """What to evaluate, and on what."""

    checkpoint: tyro.conf.Positional[Path]
    """Folder of a run, weights.safetensors, or a .ckpt file."""
    data: Path | None = None
    """Instances in COCO's format, with the categories of the training; by default those the run validated on."""
    images: Path | None = None
    """Their images, a folder or an uncompressed tar."""
    out: Path | None = None
    """Folder for scores.json, results.json, in COCO's format, and pictures; nothing is written if none."""
    batch_size: int = 1
    """Images in one forward pass, which holds the masks of all of them."""
    workers: int = 0
    """Processes that decode images; 0 for the command's own."""
    device: str | None = None
    """cpu, cuda, or a GPU by its number such as cuda:1; by default the GPU if there is one."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))
        check("workers", self.workers, int, WORKERS)


@dataclasses.dataclass(frozen=True)
class Predict:
    """Where to look for objects, and where to write what is found."""

    checkpoint: tyro.conf.Positional[Path]
    """Folder of a run, weights.safetensors, or a .ckpt file."""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES...")] = ()
    """Files, folders of images, and globs."""
    out: Path = Path("detections")
    """New folder for results.json, in COCO's format, images.json, which says the image of each id, and a picture of
    each image. An interrupted command keeps what it has found there, and the same command resumes."""
    score: float = 0.5
    """Least score of what is drawn; results.json has all that is found."""
    pictures: bool = True
    """Draw a picture of each image."""
    batch_size: int = 1
    """Images in one forward pass, which holds the masks of all of them."""
    device: str | None = None
    """cpu, cuda, or a GPU by its number such as cuda:1; by default the GPU if there is one."""

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, int, Range(1))
        if not 0 <= self.score <= 1:
            raise InputError(f"score must be between 0 and 1, got {self.score}")


@dataclasses.dataclass(frozen=True)
class Report:
    """Which runs to compare."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUNS...")] = ()
    """Folders of finished runs; the first row is the one that gains are over. Those that differ in the seed alone,
    by the content of weights and data, share a row."""
    format: Literal["text", "markdown"] = "text"
    """As a terminal or a page shows it."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets detect` and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<10}{(action.__doc__ or '').splitlines()[0]}" for name, action in ACTIONS.items()]
        say("usage: lambdanets detect ACTION ...", "", *lines)
        return 0
    if arguments[0] not in ACTIONS:
        raise InputError(
            f"lambdanets detect has no action {arguments[0]!r}, only {', '.join(ACTIONS)}"
            f"{nearest(arguments[0], ACTIONS)}"
        )
    need_packages("faster_coco_eval", "pycocotools", extra="detection")
    return ACTIONS[arguments[0]](arguments[1:])


def _train(arguments: list[str]) -> int:
    """Train by a recipe: lambdanets detect train [RECIPE] [--run DIR] [--FIELD VALUE ...], or --resume DIR."""
    from lambdanets.recipes import find_recipe, list_recipes

    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if named else "digits"
    recipe = find_recipe(name, DetectionRecipe)
    recipes = "\n".join(f"  {name}: {promise}" for name, promise in list_recipes(DetectionRecipe).items())
    options = parse_with_recipe(
        Train,
        recipe,
        arguments[1:] if named else arguments,
        prog=f"lambdanets detect train {name if named else '[RECIPE]'}",
        description=f"Train by a recipe, named first (digits if none is), or by a Python file of one.\n\n{recipes}",
    )
    from lambdanets.training.detection.quicktest import small

    changed = named or options.recipe != recipe
    done = train(options, ["detect", "train"], arguments, name=name, changed=changed, small=small)
    if isinstance(done, int):
        return done
    result, folder = done
    if result:  # the first process's
        report_unreadable(result["unreadable"])
        speed = f"{result['images_per_second']:.1f} images/s"
        say(
            f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}",
            f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, {speed}",
            f"truth beside prediction: {folder / 'predictions.png'}",
            f"precision over recall:   {folder / 'precision_recall.png'}",
            f"curves:                  {folder / 'curves.png'}",
            f"weights:                 {folder / 'weights.safetensors'}",
        )
        _print_scores(result)
    return 0


def _evaluate(arguments: list[str]) -> int:
    """Score a trained detector: lambdanets detect evaluate CHECKPOINT [--data FILE --images DIR]."""
    options = parse(
        Evaluate, arguments, prog="lambdanets detect evaluate", description="Average precision of a trained detector."
    )
    from lambdanets.data.coco.sets import report_findings
    from lambdanets.folders import WorkFolder
    from lambdanets.inference.coco_results import write_results
    from lambdanets.inference.detection import detect_in_set, open_evaluation_set
    from lambdanets.inference.detection_figures import draw_detections
    from lambdanets.inference.detector import load_detector
    from lambdanets.records import write_json

    if (options.data is None) != (options.images is None):
        raise InputError("data and images must be given together, got one without the other")
    folder = WorkFolder(options.out) if options.out is not None else None
    if folder is not None:
        folder.is_begun()
    detector = load_detector(options.checkpoint, options.device)
    images = open_evaluation_set(detector, options.data, options.images)
    report_findings(**{"validation" if options.data is None else "data": images})
    with folder.open() if folder is not None else contextlib.nullcontext():
        found = detect_in_set(detector, images, options.batch_size, options.workers)
        report_unreadable(found.unreadable)
        say(f"{len(found.read)} images, {len(found.results)} objects found")
        _print_scores(found.scores.summary())
        if options.out is not None:
            with deferred():  # a folder with a part of it would be in the way
                write_json(options.out / "scores.json", {**found.scores.as_dict(), "images": len(found.read)}, 2)
                write_results(found.results, options.out / "results.json")
                draw_detections(detector, images, found, options.out)
    return 0


def _predict(arguments: list[str]) -> int:
    """Find objects in image files: lambdanets detect predict CHECKPOINT IMAGES... takes files, folders and globs."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets detect predict",
        description="Find objects in images; write COCO's results, and a picture of each image.",
    )
    from lambdanets.data.images import find_images
    from lambdanets.folders import WorkFolder

    if not options.images:
        raise InputError("no images given; expected files, folders or globs after the checkpoint")
    paths = find_images(options.images)
    with WorkFolder(options.out, found=lambda folder: {} if (folder / JOURNAL).is_file() else None).open():
        _find_objects(options, paths)
    return 0


def _find_objects(options: Predict, paths: list[Path]) -> None:
    """Find objects in images, draw each, and write what is found, also of those until something ended it."""
    from lambdanets.files import atomic_open
    from lambdanets.inference.coco_results import coco_results, write_results
    from lambdanets.inference.detection import find_in_files
    from lambdanets.inference.detector import load_detector
    from lambdanets.inference.weights import identified
    from lambdanets.records import write_json

    if options.pictures:  # without them Matplotlib is not imported
        from lambdanets.inference.detection_figures import draw_found
    detector = load_detector(options.checkpoint, options.device)
    unreadable: list[str] = []
    identity = {"weights": identified(options.checkpoint)["sha256"], "options": [options.score, options.pictures]}
    with images_journal(options.out / "detections", identity, paths) as journal:
        done = {entry["image"]["file_name"] for entry in journal.entries}
        left = [path for path in paths if str(path) not in done]
        try:
            files = find_in_files(detector, left, unreadable, options.batch_size)
            for path, image, found in track(files, "predicting", len(left), "images", bar=not sys.stdout.isatty()):
                number = len(journal.entries) + 1
                entry = {"id": number, "file_name": str(path), "height": image.height, "width": image.width}
                results = coco_results(found, number, detector.card.category_ids)
                drawn = draw_found(image, found, detector.classes, options.score) if options.pictures else None
                with deferred():  # a picture without its entry in the journal would be in the way
                    if drawn is not None:
                        with atomic_open(options.out / f"{number:05}-{path.stem[:LONGEST_STEM]}.png") as file:
                            drawn.save(file, "PNG")
                    journal.add({"image": entry, "results": results})
                say(f"{path}  {int((found['scores'] >= options.score).sum())} objects")
        finally:
            report_unreadable(unreadable)
            if journal.entries:
                images = [entry["image"] for entry in journal.entries]
                results = [result for entry in journal.entries for result in entry["results"]]
                known = {"images": images, "categories": [*map(dataclasses.asdict, detector.categories)]}
                write_json(options.out / "images.json", known)
                write_results(results, options.out / "results.json")
                say(f"{len(results)} objects in {len(images)} images, written to {options.out}")
        if not journal.entries:
            raise InputError(f"none of the {len(paths)} images could be read")


def _report(arguments: list[str]) -> int:
    """Compare finished runs as the paper's Table 14 does: lambdanets detect report RUN..."""
    options = parse(
        Report,
        arguments,
        prog="lambdanets detect report",
        description="Average precision of boxes and masks, in percent, and gains over the first run.",
    )
    from lambdanets.evidence.detection_report import report

    if not options.runs:
        raise InputError("no runs given; expected folders of finished runs")
    say(*report(options.runs, options.format).split("\n"))
    return 0


JOURNAL = "detections.partial"  # in the folder of an interrupted detect predict
LONGEST_STEM = 50  # of a picture's name: with all around it, 255 bytes in any script
ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "report": _report,
}


def _print_scores(summary: dict[str, Any]) -> None:
    for kind, words in (("bbox", "boxes"), ("segm", "masks")):
        scores = [f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in summary[kind].items()]
        say(f"{words}  {'  '.join(scores)}")
