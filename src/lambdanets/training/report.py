"""What a run reports: findings about its data; at the end an evaluation, weights, figures and result.json."""

import sys
from pathlib import Path

from lambdanets.device import best_device
from lambdanets.inference.figures import new_figure, save_figure
from lambdanets.models.weights import WEIGHTS, save_weights
from lambdanets.provenance import provenance
from lambdanets.records import write_json
from lambdanets.terminal import echo
from lambdanets.training.callbacks import RunLog
from lambdanets.training.task import Task

RESULT, FINDINGS = "result.json", "findings.json"


def write_findings(task: Task, folder: Path) -> None:
    """Write what was found in the data, such as the ids of dropped annotations, to findings.json."""
    path = folder / FINDINGS
    if any(task.findings.values()):
        write_json(path, task.findings)
        echo(f"annotations with problems: {path}", file=sys.stderr)
    else:
        path.unlink(missing_ok=True)


def finish(task: Task, folder: Path, log: RunLog, seconds: float, processes: int) -> None:
    """Evaluate the trained model; write the weights, the figures and, last, result.json."""
    task.model.to(best_device()).eval()  # Lightning moves the model to the CPU at the end
    recipe, evaluator = task.recipe, task.evaluator(task.validation if task.test is None else task.test)
    batch_size = task.EVALUATION_BATCH_SIZE or recipe.micro_batch or recipe.batch_size
    evaluation = evaluator.evaluate(batch_size=batch_size, workers=recipe.workers)
    evaluator.draw(evaluation, folder)
    save_weights(folder / WEIGHTS, task.model, task.card().without_paths().to_json())
    draw_curves(log, folder / "curves.png")
    fields = dict(evaluation.scores)
    if task.test is not None:
        values = [value for _, value in log.points("val", task.BEST_METRIC)]
        fields[f"held_out_{task.BEST_METRIC}"] = max(values) if task.patience else values[-1]
    steps, epochs = log.rows[-1][:2]
    first, *others = recipe.step_sizes(len(task.training))
    images = min(steps * first, epochs * len(task.training)) + steps * sum(others)  # the last step may be smaller
    result = {
        "seconds": round(seconds, 2),
        "images_per_second": round(images / seconds, 1) if seconds else 0.0,
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "model_name": recipe.model,
        "data": task.source,
        "training_images": len(task.training),
        "epochs": epochs,
        "processes": processes,
        "micro_batch": recipe.micro_batch,
        "recipe": recipe.identity(),
        "initial_weights": task.initial_weights,
        "summary": evaluation.lines,
        "unreadable": sorted(log.unreadable | set(evaluation.unreadable)),
        **fields,
        **task.provenance(),
        **provenance(),
    }
    write_json(folder / RESULT, result, 2)


def draw_curves(log: RunLog, path: Path) -> None:
    """Plot each metric in training and in validation against the step."""
    columns = min(len(log.metrics), 4)
    rows = -(-len(log.metrics) // columns)
    figure = new_figure(4.5 * columns, 3.4 * rows)
    for number, name in enumerate(log.metrics, 1):
        axis = figure.add_subplot(rows, columns, number)
        for split, color, marker in (("train", "#94a3b8", None), ("val", "#1d4ed8", "o")):
            if points := log.points(split, name):
                axis.plot(*zip(*points, strict=True), color=color, label=split, marker=marker, markersize=3)
                axis.legend()
        axis.set(xlabel="step", title=name)
        axis.grid(alpha=0.3)
    save_figure(figure, path)
