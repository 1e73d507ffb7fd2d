"""The command line: lambdanets train | evaluate | predict | compare | tables | benchmark | calibrate.

tyro turns the dataclasses below into options; what a person got wrong is said in one sentence with exit code 2.
"""

import contextlib
import dataclasses
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lambdanets import __version__
from lambdanets.arguments import parse
from lambdanets.errors import InputError, nearest
from lambdanets.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Train:
    """A recipe's fields, and where the run goes."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    run: Path | None = None
    """Folder the run leaves; must be new or empty. By default runs/RECIPE-DATE-TIME."""
    resume: Path | None = None
    """Folder of an unfinished run to go on with, by the recipe it was started with."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """What to evaluate, and on what."""

    checkpoint: tyro.conf.Positional[Path]
    """Folder of a run, weights.safetensors, or a .ckpt file."""
    data: str | None = None
    """Another data set with the same classes; by default the one trained on. Its validation part is classified."""
    data_root: str | None = None
    """Where a data set named for timm lies."""
    model: str | None = None
    """Load the weights into this model instead of the one they were trained in."""


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


@dataclasses.dataclass(frozen=True)
class Calibrate:
    """What to measure."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Whose rates to measure."""
    threads: int | None = None
    """Threads of the CPU to measure with; by default as many as PyTorch takes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for what a person must mend, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names need not be text
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(given)
    except InputError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _dispatch(given: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "evaluate": evaluate,
        "predict": predict,
        "compare": compare,
        "tables": tables,
        "benchmark": benchmark,
        "calibrate": calibrate,
    }
    if not given or given[0] in ("-h", "--help"):
        print(_usage(commands))
        return 0
    if given[0] == "--version":
        print(f"lambdanets {__version__}")
        return 0
    if given[0] not in commands:
        raise InputError(f"there is no command {given[0]!r}, only {', '.join(commands)}{nearest(given[0], commands)}")
    return commands[given[0]](given[1:])


def _usage(commands: dict[str, Callable[[list[str]], int]]) -> str:
    lines = [f"  {name:<11}{(function.__doc__ or '').splitlines()[0]}" for name, function in commands.items()]
    return "\n".join(
        ["usage: lambdanets COMMAND ...", "", *lines, "", "lambdanets COMMAND --help says what a command takes."]
    )


def train(arguments: list[str]) -> int:
    """Train by a recipe: lambdanets train [RECIPE] [--run DIR] [--FIELD VALUE ...], or --resume DIR."""
    from lambdanets.recipes import find_recipe, list_recipes

    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if named else "digits"
    recipe = find_recipe(name)
    recipes = "\n".join(f"  {name}: {promise}" for name, promise in list_recipes().items())
    options = _parse_with_recipe(
        Train,
        recipe,
        arguments[1:] if named else arguments,
        prog=f"lambdanets train {name}",
        description=f"Train by a recipe, named first (digits if none is), or by a Python file of one.\n\n{recipes}",
    )
    from lambdanets.training import run

    if options.resume is not None:
        if named or options.recipe != recipe or options.run is not None:
            raise InputError("--resume goes on by the run's own recipe; give no recipe, field or --run beside it")
        folder = options.resume
    else:
        folder = options.run or Path("runs") / f"{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    with _explained(f"lambdanets train --resume {folder}", folder / run.RECIPE):
        result = run.resume(folder) if options.resume is not None else run.start(options.recipe, folder)
    _report(result, folder)
    return 0


def _parse_with_recipe(options: type[Any], recipe: Recipe, arguments: list[str], **more: str) -> Any:
    """Options that hold a recipe, beginning from one; options of the model are added to its own, or replace them."""
    # tyro makes an option of each key that a dictionary holds already, and then takes no others
    default = options(recipe=dataclasses.replace(recipe, model_options={}))
    parsed = parse(options, arguments, default=default, **more)
    both = recipe.model_options | parsed.recipe.model_options
    return dataclasses.replace(parsed, recipe=dataclasses.replace(parsed.recipe, model_options=both))


@contextlib.contextmanager
def _explained(command: str, begun: Path) -> Iterator[None]:
    """Say in a sentence what ends training early, and the command to go on with once the file `begun` is there."""
    import torch

    from lambdanets.training.interruption import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        print(f"stopped{f'; go on with: {command}' if begun.is_file() else ''}", file=sys.stderr)
        raise KeyboardInterrupt from None
    except OSError as error:
        kept = "; the last checkpoint is whole" if (begun.parent / "checkpoints" / "last.ckpt").is_file() else ""
        advice = f"; once mended, go on with: {command}" if begun.is_file() else ""
        raise InputError(f"{error.filename or 'the run'}: {error.strerror or error}{kept}{advice}") from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise InputError("out of memory; lower --batch-size or --image-size, or choose a smaller model") from error


def evaluate(arguments: list[str]) -> int:
    """Measure a trained model's top-1 on the validation part of a data set: lambdanets evaluate CHECKPOINT."""
    options = parse(Evaluate, arguments, prog="lambdanets evaluate", description="Measure a trained model's top-1.")
    from lambdanets.training import evaluation
    from lambdanets.training.classifier import load_classifier

    classifier = load_classifier(options.checkpoint, options.model)
    judgement = evaluation.evaluate(classifier, options.data, options.data_root)
    _tell_unreadable(judgement.unreadable)
    print(f"{len(judgement.labels)} images, {int((judgement.labels == judgement.predicted).sum())} right")
    print(f"top-1 {judgement.top1:.4f}")
    return 0


def predict(arguments: list[str]) -> int:
    """Classify image files: lambdanets predict CHECKPOINT IMAGES... takes files, folders and globs."""
    options = parse(
        Predict,
        arguments,
        prog="lambdanets predict",
        description="Classify image files, folders of them and globs; print a table and write JSON lines.",
    )
    from lambdanets.files import printable_bytes, whole_file
    from lambdanets.training import evaluation
    from lambdanets.training.classifier import load_classifier
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
        _tell_unreadable(unreadable)
        if not predicted:
            raise InputError(f"none of the {len(paths)} images could be read")
    print(f"{predicted} images, written to {options.out}")
    return 0


def benchmark(arguments: list[str]) -> int:
    """Measure layers and models beside their rivals: lambdanets benchmark layer|model|memory|scaling [--out DIR]."""
    from lambdanets.benchmark.options import KINDS

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {kind:<9}{(options.__doc__ or '').strip()}" for kind, options in KINDS.items()]
        print("\n".join(["usage: lambdanets benchmark KIND ...", "", *lines, "", "Each has --help of its own."]))
        return 0
    kind = arguments[0]
    if kind not in KINDS:
        raise InputError(f"there is no benchmark {kind!r}, only {', '.join(KINDS)}{nearest(kind, KINDS)}")
    description = (
        f"{KINDS[kind].__doc__}\n\nOutputs and gradients are checked against float64 before a time is printed."
    )
    options = parse(KINDS[kind], arguments[1:], prog=f"lambdanets benchmark {kind}", description=description)
    from lambdanets.benchmark import command

    command.run(kind, options)
    return 0


def compare(arguments: list[str]) -> int:
    """Train variants of a network alike, over seeds: lambdanets compare STUDIES [RECIPE], or --resume DIR."""
    from lambdanets.comparison.studies import MODEL, MODEL_OPTIONS, STUDIES
    from lambdanets.recipes import find_recipe

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<18}{study.question}" for name, study in STUDIES.items()]
        usage = [
            "usage: lambdanets compare STUDIES [RECIPE] ...   one study, several as in mixers,scope, or all",
            "       lambdanets compare --resume DIR           go on, or help, beside other processes",
            "       lambdanets compare --report RESULTS.json  the tables again",
        ]
        print("\n".join([*usage, "", *lines, "", "lambdanets compare STUDIES --help says what can be asked."]))
        return 0
    if arguments[0] in ("--resume", "--report"):
        if len(arguments) != 2:
            raise InputError(f"{arguments[0]} takes one path and nothing beside it, got {' '.join(arguments[1:])!r}")
        from lambdanets.comparison import command, execution, summary

        path = Path(arguments[1])
        if arguments[0] == "--report":
            print(summary.markdown(summary.read_summary(path)), end="")
            return 0
        with _explained(f"lambdanets compare --resume {path}", path / execution.PLAN):
            command.go_on(path)
        return 0
    first, *rest = arguments
    named = bool(rest) and not rest[0].startswith("-")
    recipe = dataclasses.replace(find_recipe(rest[0] if named else "digits"), model=MODEL, model_options={})
    from lambdanets.comparison import command, execution

    studies = tuple(STUDIES) if first == "all" else tuple(first.split(","))
    variants = ", ".join(execution.labels_of(studies))
    options = _parse_with_recipe(
        command.Compare,
        recipe,
        rest[1:] if named else rest,
        prog=f"lambdanets compare {first}",
        description=f"Train these alike: {variants}.",
    )
    if options.recipe.seed != recipe.seed:
        raise InputError(
            f"--seed must be left to --seeds, which trains with each of its numbers; got {options.recipe.seed}"
        )
    usual = MODEL_OPTIONS if options.recipe.model == MODEL else {}
    recipe = dataclasses.replace(options.recipe, model_options=usual | options.recipe.model_options)
    plan = execution.make_plan(studies, options.variants, options.seeds, recipe)
    folder = options.out or Path("comparisons") / f"{first.replace(',', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    with _explained(f"lambdanets compare --resume {folder}", folder / execution.PLAN):
        command.start(plan, folder)
    return 0


def tables(arguments: list[str]) -> int:
    """Show the paper's tables beside ours: lambdanets tables [3|4|...|20] [--check] [--format markdown]."""
    from lambdanets.reproduction import command

    description = "Show the paper's tables with what the models of this package come to beside each figure."
    return command.run(parse(command.Tables, arguments, prog="lambdanets tables", description=description))


def calibrate(arguments: list[str]) -> int:
    """Measure how fast this machine computes, for the choice of algorithms: lambdanets calibrate."""
    description = "Measure how fast this machine computes, and keep it for the automatic choice of algorithms."
    options = parse(Calibrate, arguments, prog="lambdanets calibrate", description=description)
    if options.threads is not None and options.threads < 1:
        raise InputError(f"threads must be at least 1, got {options.threads}")
    import torch

    from lambdanets import calibration
    from lambdanets.ops.position.rates import built_in, calibration_file

    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda needs a GPU, and PyTorch finds none")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    usual = dataclasses.asdict(built_in(options.device, torch.get_num_threads()))
    rates = dataclasses.asdict(calibration.calibrate(options.device))
    print(f"{'':24}{'measured':>12}{'built in':>12}")
    for name, value in rates.items():
        print(f"{name.replace('_', ' '):24}{value:>12.3g}{usual[name]:>12.3g}")
    print(f"written to {calibration_file()}")
    return 0


def _report(result: dict[str, Any], folder: Path) -> None:
    _tell_unreadable(result["unreadable"])
    print(f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}")
    print(f"trained {result['epochs']} epochs in {result['seconds']:.0f} s, {result['images_per_second']:.0f} images/s")
    print(f"what it got right and wrong: {folder / 'predictions.png'}")
    print(f"curves:                      {folder / 'curves.png'}")
    print(f"weights:                     {folder / 'weights.safetensors'}")
    print(f"top-1 {result['top1']:.4f}")


def _tell_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        print(f"skipped {len(unreadable)} images that could not be read:", file=sys.stderr)
        for sentence in unreadable:
            print(f"  {sentence}", file=sys.stderr)


def _refuse(sentence: str) -> int:
    print(f"lambdanets: {sentence}", file=sys.stderr)
    return 2
