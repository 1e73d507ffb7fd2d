"""`lambdanets train`: trains a recipe of any task."""

import argparse
import shlex
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from lambdanets.cli.options import parse_all, program
from lambdanets.cli.predict import report_unreadable
from lambdanets.errors import InputError
from lambdanets.files import RECIPE
from lambdanets.records import record
from lambdanets.registry import TASKS
from lambdanets.signals import resumable, uninterrupted
from lambdanets.terminal import echo, plural
from lambdanets.training.recipe import TrainingRecipe, extended_recipe, read_recipe, task_class

# Defaults of the options with --quicktest, as far as a recipe has them.
QUICKTEST: dict[str, Any] = dict.fromkeys(("data_root", "images", "validation_data", "validation_images", "weights"))
QUICKTEST |= {"data": "digits", "training_images": 12, "validation_share": 0.02, "image_size": 64}
QUICKTEST |= {"epochs": 2, "batch_size": 4, "warmup_epochs": 0.5, "learning_rate": 0.001, "checkpoint_every": 2}
QUICKTEST |= {"pyramid_channels": 16, "box_layers": (0, 32), "mask_layers": 1}
QUICKTEST |= {"proposals": 40, "sampled_regions": 16, "max_detections": 10, "workers": 0}


@record
class TrainOptions:
    """Options of train."""

    run: Path | None = None
    """Run folder; an unfinished run of the same recipe in it is resumed. By default runs/RECIPE-DATE-TIME."""
    resume: Path | None = None
    """Run folder of an unfinished run to resume, with its own recipe; with --data if its data was moved."""
    devices: PositiveInt | None = None
    """Number of GPUs, or of processes on the CPU, on this machine; 1 by default. Use torchrun for several machines."""
    quicktest: bool = False
    """Train for a few steps on small scanned digits, except for what other options say."""
    dry_run: bool = False
    """Check the recipe and its data; print images, steps, micro-batches and milliseconds per step, without training."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets train` and return its exit code."""
    name, options, recipe = parse_train_command(arguments)
    if options.quicktest and options.resume is not None:
        raise InputError("--quicktest starts a run of its own; remove it or --resume")
    default = Path("runs") / f"{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = options.resume or options.run or default
    from lambdanets.training import distributed

    world = distributed.get_world()
    if options.devices is not None and not distributed.is_torchelastic_launched():
        run_option = ["--run", str(folder)] if folder == default else []
        return distributed.launch(options.devices, ["train", *arguments, *run_option])
    from lambdanets.training import run

    if options.dry_run:
        run.dry_run(recipe)
        return 0
    if world.world_size > 1 and folder == default:
        raise InputError("run must be given with several processes, the same for all; set it with --run DIR")
    words = ["train", *([name] if name.endswith(".py") else [])]
    words += ["--resume", str(folder), *(["--devices", str(options.devices)] if options.devices else [])]
    how = f": {program()} {shlex.join(words)}" if world.world_size == 1 or options.devices else " the same command"
    with resumable(f"resume with{how}", folder / RECIPE) if world.rank == 0 else uninterrupted():
        result = run.start(recipe, folder)
    if result:  # on rank 0
        report_unreadable(result["unreadable"])
        echo(
            f"{result['model_name']}, {result['parameters']:,} parameters, on {result['data']}",
            f"trained {plural(result['epochs'], 'epoch')} in {result['seconds']:.0f} s, "
            f"{result['images_per_second']:.1f} images/s",
            f"weights: {folder / 'weights.safetensors'}",
            *(f"{file.stem.replace('_', ' ')}: {file}" for file in sorted(folder.glob("*.png"))),
            *(["a quick test: scores of so few steps mean nothing"] if options.quicktest else []),
            *result["summary"],
        )
    return 0


def parse_train_command(arguments: list[str]) -> tuple[str, TrainOptions, Any]:
    """Parse [RECIPE] [--OPTION VALUE ...] and return the recipe's name, by default digits, the options and the recipe.

    With --resume the run's own recipe is the default; the run refuses options that differ from it, except for those in
    `CHANGEABLE` and paths of moved data.
    """
    from lambdanets.recipes import find_recipe

    has_recipe = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if has_recipe else "digits"
    recipe = find_recipe(name)  # a file may register the task of the run
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--resume", nargs="?")  # `parse_all` reports a missing value
    resumed = first.parse_known_args(arguments)[0].resume
    words = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    if resumed:
        recipe = read_recipe(Path(resumed) / RECIPE)
    elif "--quicktest" in words:
        of_digits = ("training_images", "validation_share") if "--data" in words else ()
        fields = {name: value for name, value in QUICKTEST.items() if hasattr(recipe, name) and name not in of_digits}
        recipe = replace(recipe, **fields)
    recipe = extended_recipe(recipe, [word.removeprefix("--").replace("-", "_") for word in words])
    parse = partial(
        parse_with_recipe,
        TrainOptions,
        arguments=arguments[1:] if has_recipe else arguments,
        prog=f"lambdanets train {name if has_recipe else '[RECIPE]'}",
        description=f"Train a model for {recipe.task}." if has_recipe else _describe_recipes(),
    )
    options, requested = parse(recipe)
    if not requested.model and requested.weights and options.resume is None:
        # what the weights determine is the default of the options
        options, requested = parse(task_class(recipe).resolve(replace(recipe, weights=requested.weights)))
    if not has_recipe and not resumed and requested.data != recipe.data:
        raise InputError("a recipe must be named before --data, such as image_folder, finetune, objects or regions")
    if options.resume is not None and ((has_recipe and not name.endswith(".py")) or options.run is not None):
        raise InputError("--resume uses the run's own recipe; remove the recipe and --run")
    return name, options, requested


def parse_with_recipe(options: type[Any], recipe: TrainingRecipe, arguments: list[str], **texts: str) -> list[Any]:
    """Parse options of a command and of its recipe; model options are merged into the recipe's, if for its model."""
    defaults = (options, replace(recipe, model_options={}))
    parsed, changed = parse_all(defaults, arguments, **texts)
    known = recipe.model_options if changed.model == recipe.model else {}
    return [parsed, replace(changed, model_options=known | changed.model_options)]


def _describe_recipes() -> str:
    from lambdanets.recipes import list_recipes, list_variants

    lines = ["Train a model. RECIPE is a recipe below or a Python file; digits by default, whose options are below."]
    for task in TASKS:
        if recipes := list_recipes(task):
            lines += ["", f"{task}:"]
        for name, text in recipes.items():
            lines.append(f"  {name}: {text}")
            if variants := list_variants(name):
                lines.append(textwrap.fill(", ".join(variants), 100, initial_indent="    ", subsequent_indent="    "))
    return "\n".join([*lines, "", "lambdanets train RECIPE --help lists the options of its task."])
