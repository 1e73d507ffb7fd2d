"""`lambdanets compare`."""

import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from lambdanets.cli.options import parse, program
from lambdanets.cli.train import parse_with_recipe
from lambdanets.errors import InputError, check_choice
from lambdanets.records import Seed, record
from lambdanets.signals import resumable
from lambdanets.terminal import echo, plural

if TYPE_CHECKING:
    from lambdanets_lab.studies.execution import Plan


@record
class Compare:
    """Options of compare."""

    variants: tuple[str, ...] = ()
    """Names of the variants to train, each quoted, such as "local attention"; all variants above by default."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    """Random seeds; one run per variant and seed."""
    out: Path | None = None
    """Folder for the runs and results; the same command resumes, and several processes may train in it. By default
    comparisons/STUDIES-DATE-TIME."""


@record
class Report:
    """Print the tables of comparisons."""

    report: Annotated[tuple[Path, ...], Field(min_length=1)]
    """Files results.json of comparisons to merge, such as of other seeds, and to print as tables."""


def main(arguments: list[str]) -> None:
    """Run `lambdanets compare`."""
    from lambdanets.recipes import find_recipe
    from lambdanets_lab.studies.catalog import MODEL, MODEL_OPTIONS, STUDIES, variant_labels

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<18}{study.question}" for name, study in STUDIES.items()]
        usage = [
            "usage: lambdanets compare STUDIES [RECIPE] ...   train; STUDIES: such as mixers, or mixers,scope, or all",
            "       lambdanets compare --report RESULTS.json  print the tables; merges several files",
        ]
        echo(*usage, "", *lines, "", "lambdanets compare STUDIES --help lists the options.")
        return
    if arguments[0].startswith("-"):
        paths = parse(Report, arguments, "compare").report
        from lambdanets_lab.studies.results import markdown, read_comparison

        echo(*markdown(read_comparison(*paths)).rstrip("\n").split("\n"))
        return
    names, *remaining = arguments
    has_recipe = bool(remaining) and not remaining[0].startswith("-")
    recipe = find_recipe(remaining[0] if has_recipe else "digits")
    if recipe.task != "classification":
        raise InputError(f"RECIPE must be a classification recipe, got a {recipe.task} recipe")
    recipe = dataclasses.replace(recipe, model=MODEL, model_options=MODEL_OPTIONS)
    studies = tuple(STUDIES) if names == "all" else tuple(names.split(","))
    labels = variant_labels(studies)
    variants = "\n".join(f"  {label}" for label in labels)
    options, requested = parse_with_recipe(
        Compare,
        recipe,
        remaining[1:] if has_recipe else remaining,
        prog=f"lambdanets compare {names}{'' if has_recipe else ' [RECIPE]'}",
        description=f"Train variants of a network with the same recipe and seeds.\n\nvariants:\n{variants}",
    )
    for label in options.variants:
        check_choice("variants", label, labels)
    if requested.seed != recipe.seed:
        raise InputError(
            f"--seed must not be given, got {requested.seed}; use --seeds, such as --seeds {requested.seed}"
        )
    from lambdanets.training.distributed import get_world
    from lambdanets_lab.studies import execution

    if get_world().world_size > 1:
        raise InputError("lambdanets compare must not run under torchrun; start it with the same --out once per GPU")
    plan = execution.make_plan(studies, options.variants, options.seeds, requested)
    folder = options.out or Path("comparisons") / f"{names.replace(',', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = [*arguments, *([] if options.out else ["--out", str(folder)])]
    with resumable(f"resume with: {program()} compare {shlex.join(command)}", folder / execution.PLAN):
        execution.begin(plan, folder)
        _train(plan, folder)


def _train(plan: "Plan", folder: Path) -> None:
    """Train the unfinished runs of a plan, update the results after each, and print them at the end."""
    from lambdanets_lab.studies.execution import read_results, train_all
    from lambdanets_lab.studies.results import RESULTS, TABLE, collect, markdown, write_summary

    num_runs, results = len(plan.runs()), read_results(plan, folder)
    work = f"{plural(len(plan.seeds), 'seed')}, {plural(num_runs, 'run')}, {len(results)} done"
    echo(f"{', '.join(plan.studies)}: {work}")
    failures = []
    for run, outcome in train_all(plan, folder):
        name = f"{run.variant}, seed {run.seed}"
        if isinstance(outcome, InputError):
            failures.append(f"{name}: {outcome}")
            echo(failures[-1], file=sys.stderr)
            continue
        results = read_results(plan, folder)  # also those of other processes
        write_summary(collect(plan, results), folder)
        echo(f"[{len(results)}/{num_runs}] {name}: top-1 {outcome.top1:.4f}, {outcome.seconds:.0f} s")
    results = read_results(plan, folder)
    if failures:
        raise InputError(f"{plural(len(failures), 'run')} of {num_runs} failed, first {failures[0]}")
    if len(results) < num_runs:
        others = plural(num_runs - len(results), "run")
        echo(f"{others} in progress in other processes; the last process writes the results")
        return
    write_summary(collect(plan, results), folder)
    echo("", *markdown(collect(plan, results)).split("\n"))
    echo(f"written to {folder}: {RESULTS}, {TABLE} and one figure per study")
