"""`lambdanets segment`."""

from collections.abc import Callable
from typing import Any

from lambdanets.cli import evaluate, predict
from lambdanets.cli.actions import run_action
from lambdanets.cli.training import parse_train_command, train_and_report
from lambdanets.terminal import echo
from lambdanets.training.segmentation.recipe import SegmentationRecipe


def main(arguments: list[str]) -> int:
    """Run `lambdanets segment` and return its exit code."""
    return run_action("segment", ACTIONS, arguments)


def _train(arguments: list[str]) -> int:
    """Train a U-Net: lambdanets segment train [RECIPE] [--OPTION VALUE ...], or segment train --resume DIR."""
    command = parse_train_command(SegmentationRecipe, arguments, "Train a network for semantic segmentation")
    figures = {"predictions": "predictions.png"}
    return train_and_report(command, figures, _print_scores)


ACTIONS: dict[str, Callable[[list[str]], int]] = {"train": _train, "evaluate": evaluate.main, "predict": predict.main}


def _print_scores(scores: dict[str, Any]) -> None:
    """Print a table with the scores of each class, and the means without the background."""
    from lambdanets.inference.evaluator import format_score
    from lambdanets.inference.segmentation_scores import SCORES
    from lambdanets.text_tables import text_table

    rows = [["class", *SCORES]]
    for row in (*scores["classes"], scores | {"name": "mean without background"}):
        rows.append([row["name"], *(format_score(row[score]) for score in SCORES)])
    echo(*text_table(rows).splitlines())
