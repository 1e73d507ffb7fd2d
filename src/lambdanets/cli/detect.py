"""`lambdanets detect`."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from lambdanets.cli import evaluate, predict
from lambdanets.cli.actions import run_action
from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.cli.training import parse_train_command, train_and_report
from lambdanets.errors import InputError
from lambdanets.records import record
from lambdanets.terminal import echo
from lambdanets.training.detection.recipe import DetectionRecipe


@record
class Report:
    """Options of detect report."""

    runs: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """Folders of finished runs; runs that differ only in the seed are averaged. Gains are relative to the first row."""
    format: Literal["text", "markdown"] = "text"
    """Output format."""


def main(arguments: list[str]) -> int:
    """Run `lambdanets detect` and return its exit code."""
    return run_action("detect", ACTIONS, arguments)


def _train(arguments: list[str]) -> int:
    """Train a detector: lambdanets detect train [RECIPE] [--OPTION VALUE ...], or detect train --resume DIR."""
    command = parse_train_command(DetectionRecipe, arguments, "Train Mask R-CNN")
    figures = {"predictions": "predictions.png", "precision-recall": "precision_recall.png"}
    return train_and_report(command, figures, _print_scores)


def _report(arguments: list[str]) -> int:
    """Compare finished runs as in the paper's Table 14: lambdanets detect report RUNS..."""
    options = parse(
        Report,
        arguments,
        prog="lambdanets detect report",
        description="Print box and mask AP of finished runs in percent, with gains over the first run.",
    )
    if not options.runs:
        raise InputError("RUNS must be at least one folder of a finished run, got none")
    report = importlib.import_module("lambdanets_lab.detection_report").report
    echo(*report(options.runs, options.format).split("\n"))
    return 0


ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": evaluate.main,
    "predict": predict.main,
    "report": _report,
}


def _print_scores(summary: dict[str, Any]) -> None:
    for kind, label in (("bbox", "boxes"), ("segm", "masks")):
        scores = [f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in summary[kind].items()]
        echo(f"{label}  {'  '.join(scores)}")
