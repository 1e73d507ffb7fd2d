"""`lambdanets compare`."""

import dataclasses
import time
from pathlib import Path

from lambdanets.cli.runs import explained, parse_with_recipe
from lambdanets.errors import InputError


def main(arguments: list[str]) -> int:
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
        with explained(f"lambdanets compare --resume {path}", path / execution.PLAN):
            command.go_on(path)
        return 0
    first, *rest = arguments
    named = bool(rest) and not rest[0].startswith("-")
    recipe = dataclasses.replace(find_recipe(rest[0] if named else "digits"), model=MODEL, model_options={})
    from lambdanets.comparison import command, execution

    studies = tuple(STUDIES) if first == "all" else tuple(first.split(","))
    variants = ", ".join(execution.labels_of(studies))
    options = parse_with_recipe(
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
    with explained(f"lambdanets compare --resume {folder}", folder / execution.PLAN):
        command.start(plan, folder)
    return 0
