"""What a run reports: findings about its data; at the end an evaluation, weights, figures and result.json."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambdanets.device import best_device
from lambdanets.models.weights import WEIGHTS, save_weights
from lambdanets.provenance import provenance
from lambdanets.records import parse_json, write_json
from lambdanets.terminal import echo
from lambdanets.training.curves import draw_curves
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.run_log import RunLog
from lambdanets.training.task import Task

RESULT, FINDINGS = "result.json", "findings.json"


@dataclass(frozen=True)
class Result:
    """Fields of result.json that are read again. Each task adds its own."""

    seconds: float
    images_per_second: float
    parameters: int
    unreadable: list[str]
    model_name: str
    data: str
    epochs: int
    summary: list[str]  # the scores, as they are printed


def write_findings(task: Task, folder: Path) -> None:
    """Write what was found in the data, such as the ids of dropped annotations, to findings.json."""
    path = folder / FINDINGS
    if any(task.findings.values()):
        write_json(path, task.findings)
        echo(f"all dropped annotations: {path}", file=sys.stderr)
    else:
        path.unlink(missing_ok=True)


def finish(
    task: Task, recipe: TrainingRecipe, folder: Path, log: RunLog, seconds: float, processes: int
) -> dict[str, Any]:
    """Evaluate the trained model; write the weights, the figures and, last, result.json; return the result."""
    task.model.to(best_device()).eval()  # Lightning moves the model to the CPU at the end
    evaluator = task.evaluator(recipe, task.validation if task.test is None else task.test)
    batch_size = task.EVALUATION_BATCH_SIZE or recipe.micro_batch or recipe.batch_size
    evaluation = evaluator.evaluate(batch_size, recipe.workers)
    evaluator.draw(evaluation, folder)
    save_weights(folder / WEIGHTS, task.model, task.card(recipe).without_paths().to_json())
    draw_curves(log.rows, log.metrics, panels(task), folder / "curves.png")
    fields = evaluation.to_dict()
    if task.test is not None:
        values = log.values("val", task.BEST_METRIC)
        fields[f"held_out_{task.BEST_METRIC}"] = max(values) if task.patience else values[-1]
    result = {
        "seconds": round(seconds, 2),
        "images_per_second": round(log.images_seen / seconds, 1) if seconds else 0.0,
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "model_name": recipe.model,
        "data": task.source,
        "training_images": len(task.training),
        "epochs": max(row[1] for row in log.rows),
        "processes": processes,
        "micro_batch": recipe.micro_batch,
        "recipe": {name: value for name, value in recipe.fields().items() if name not in recipe.CHANGEABLE},
        "initial_weights": task.initial_weights,
        "summary": evaluation.lines(),
        "unreadable": sorted(log.unreadable | set(evaluation.unreadable)),
        **fields,
        **task.provenance(),
        **provenance(),
    }
    write_json(folder / RESULT, result, 2)
    return read_result(folder)


def panels(task: Task) -> list[tuple[str, list[str]]]:
    """The title and metrics of each panel of curves.png."""
    scores = [name for name in task.VALIDATION_METRICS if name != "loss"]
    terms = [name for name in task.TRAINING_METRICS if name not in ("loss", *scores)]
    shown = {"loss": ["loss"], "loss terms": terms, "scores": scores}
    return [(title, names) for title, names in shown.items() if names]


def read_result(folder: Path) -> dict[str, Any]:
    """Read result.json. Raises InputError if it is damaged."""
    content = (folder / RESULT).read_bytes()
    advice = "remove it and run the command with --resume to write it again"
    parse_json(content, Result, f"{folder / RESULT} is damaged", advice)
    fields: dict[str, Any] = json.loads(content)
    return fields
