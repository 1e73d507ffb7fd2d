"""`lambdanets train`."""

from typing import Any

from lambdanets.cli.training import TrainOptions, parse_train_command, train_and_report
from lambdanets.errors import InputError
from lambdanets.progress import Progress
from lambdanets.records import record
from lambdanets.terminal import echo
from lambdanets.training.classification.recipe import ClassificationRecipe


@record
class Train(TrainOptions):
    """Options of train."""

    plan: bool = False
    """Print the steps, memory, hours, data size and read rate that training needs on --devices, without training."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets train` and return its exit code."""
    command = parse_train_command(ClassificationRecipe, arguments, "Train a classifier", Train)
    if command.options.plan:
        return _plan(command.options, command.recipe)
    figures = {"predictions": "predictions.png"}
    return train_and_report(command, figures, _print_top1)


def _plan(options: Train, recipe: Any) -> int:
    from lambdanets.training.classification.plan import plan
    from lambdanets.training.distributed import get_world

    if options.resume is not None or options.run is not None or options.quicktest:
        raise InputError("--plan trains nothing; remove --resume, --run and --quicktest")
    with Progress("planning"):
        lines = plan(recipe, options.devices or get_world().world_size).format_lines()
    echo(*lines)
    return 0


def _print_top1(result: dict[str, Any]) -> None:
    echo(f"top-1 {result['top1']:.4f}")
