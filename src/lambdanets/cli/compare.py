"""`lambdanets compare`."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import tyro

from lambdanets.cli.arguments import parse
from lambdanets.cli.training import explained, parse_with_recipe
from lambdanets.errors import InputError
from lambdanets.terminal import say
from lambdanets.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Compare:
    """A recipe's fields, which variants and seeds to train by it, and where the results go."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    variants: tuple[str, ...] = ()
    """Variants of the studies, by name; all if none is given."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each variant is trained once with each: of weights, order, augmentation and the choice of images."""
    out: Path | None = None
    """Folder for the runs and results; must be new or empty. By default comparisons/STUDY-DATE-TIME."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """A comparison that was begun, or its results."""

    resume: Path | None = None
    """Folder of a comparison to resume, or to help with beside other processes."""
    report: Path | None = None
    """results.json of a comparison, to print its tables again."""

    def __post_init__(self) -> None:
        if (self.resume is None) == (self.report is None):
            both = "neither" if self.resume is None else "both"
            raise InputError(f"lambdanets compare must have one of --resume and --report, got {both}")


def main(arguments: list[str]) -> int:
    """Run `lambdanets compare` and return its exit code."""
    from lambdanets.evidence.studies.catalog import MODEL, MODEL_OPTIONS, STUDIES, labels_of
    from lambdanets.recipes import find_recipe

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<18}{study.question}" for name, study in STUDIES.items()]
        usage = [
            "usage: lambdanets compare STUDIES [RECIPE] ...   one study, several as in mixers,scope, or all",
            "       lambdanets compare --resume DIR           go on, or help, beside other processes",
            "       lambdanets compare --report RESULTS.json  the tables again",
        ]
        say(*usage, "", *lines, "", "lambdanets compare STUDIES --help lists the options.")
        return 0
    if arguments[0].startswith("-"):
        return _go_on(parse(Kept, arguments, prog="lambdanets compare", description="Resume or report a comparison."))
    first, *rest = arguments
    named = bool(rest) and not rest[0].startswith("-")
    recipe = dataclasses.replace(find_recipe(rest[0] if named else "digits"), model=MODEL, model_options={})
    studies = tuple(STUDIES) if first == "all" else tuple(first.split(","))
    variants = ", ".join(labels_of(studies))
    options = parse_with_recipe(
        Compare,
        recipe,
        rest[1:] if named else rest,
        prog=f"lambdanets compare {first}{'' if named else ' [RECIPE]'}",
        description=f"Train these alike: {variants}.",
    )
    if options.recipe.seed != recipe.seed:
        raise InputError(
            f"--seed must be left to --seeds, which trains with each of its numbers; got {options.recipe.seed}"
        )
    from lambdanets.evidence.studies import execution

    usual = MODEL_OPTIONS if options.recipe.model == MODEL else {}
    recipe = dataclasses.replace(options.recipe, model_options=usual | options.recipe.model_options)
    plan = execution.make_plan(studies, options.variants, options.seeds, recipe)
    folder = options.out or Path("comparisons") / f"{first.replace(',', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    with explained(f"lambdanets compare --resume {folder}", folder / execution.PLAN):
        execution.begin(plan, folder)
        _train(folder)
    return 0


def _go_on(options: Kept) -> int:
    from lambdanets.evidence.studies import execution, summary

    if options.report is not None:
        say(*summary.markdown(summary.read_summary(options.report)).rstrip("\n").split("\n"))
    elif options.resume is not None:
        with explained(f"lambdanets compare --resume {options.resume}", options.resume / execution.PLAN):
            _train(options.resume)
    return 0


def _train(folder: Path) -> None:
    """Train what a folder's plan still lacks, write the results after each run, and print them at the end."""
    from lambdanets.evidence.studies.execution import read_plan, read_results, train_all
    from lambdanets.evidence.studies.summary import RESULTS, TABLE, markdown, summarize, write_summary

    plan = read_plan(folder)
    total, before = len(plan.runs()), len(read_results(plan, folder))
    say(f"{', '.join(plan.studies)}: {len(plan.seeds)} seeds, {total} runs, {before} of them done")
    started = time.monotonic()

    def tell(result: dict[str, Any]) -> None:
        results = read_results(plan, folder)
        write_summary(plan, results, folder)
        done = len(results)
        left = (time.monotonic() - started) / max(1, done - before) * (total - done)
        say(
            f"[{done}/{total}] {result['variant']}, seed {result['seed']}: top-1 {result['top1']:.4f}, "
            f"{result['seconds']:.0f} s{f'; about {left / 60:.0f} min left' if done < total else ''}"
        )

    train_all(plan, folder, tell)
    results = read_results(plan, folder)
    if before == total:
        say("", *markdown(summarize(plan, results)).split("\n"))
        return
    if len(results) < total:
        say(f"{total - len(results)} runs are under way in other processes, the last of which writes the results")
        return
    say("", *markdown(write_summary(plan, results, folder)).split("\n"))
    say(f"written to {folder}: {RESULTS}, {TABLE} and a picture a study")
