"""The registry of tasks. CONTRIBUTING.md lists what else a new task needs.

Other packages register theirs as entry points of the group "lambdanets.tasks", as examples/keywords does.
"""

from pkgutil import resolve_name
from typing import Any, NamedTuple

from lambdanets.errors import check_choice

RECIPE_PACKAGES = ("lambdanets.recipes", "lambdanets_lab.recipes")


class TaskEntry(NamedTuple):
    """An entry of the registry. Names are "module:name", imported on first use, so that --help is fast.

    recipe: its class. implementation: the Task. predictor: the class of trained models.
    """

    recipe: str
    implementation: str
    predictor: str


TASKS = {
    "classification": TaskEntry(
        "lambdanets.tasks.recipes:ClassificationRecipe",
        "lambdanets.tasks.classification:ClassificationTask",
        "lambdanets.inference.classifier:Classifier",
    ),
    "student": TaskEntry(
        "lambdanets_lab.pseudo.recipe:StudentRecipe",
        "lambdanets_lab.pseudo.student:StudentTask",
        "lambdanets.inference.classifier:Classifier",
    ),
    "detection": TaskEntry(
        "lambdanets.tasks.recipes:DetectionRecipe",
        "lambdanets.tasks.detection:DetectionTask",
        "lambdanets.inference.detector:Detector",
    ),
    "segmentation": TaskEntry(
        "lambdanets.tasks.recipes:SegmentationRecipe",
        "lambdanets.tasks.segmentation:SegmentationTask",
        "lambdanets.inference.segmenter:Segmenter",
    ),
}


def task_entry(task: object, source: object) -> TaskEntry:
    """Return the entry of a task that a file names, also of an installed package. Raises InputError if unknown."""
    from importlib.metadata import entry_points  # takes longer than the rest of --help

    name = str(task)
    for point in entry_points(group="lambdanets.tasks", name=name) if name not in TASKS else ():
        TASKS[name] = point.load()
    check_choice(f"task in {source}", task, TASKS)
    return TASKS[name]


def predictor_of(task: str) -> Any:
    """Return the class of the trained models of a task."""
    return resolve_name(TASKS[task].predictor)
