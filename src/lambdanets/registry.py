"""The registry of tasks. CONTRIBUTING.md lists what else a new task needs.

Tasks of the lab (`lambdanets_lab`) are found by name like the others, and imported only when they are used.
"""

import dataclasses
import importlib
from functools import cached_property
from typing import Any

RECIPE_PACKAGES = ("lambdanets.recipes", "lambdanets_lab.recipes")


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """An entry of the registry. Names are "module:name", imported on first use, so that --help is fast.

    recipe: its class. implementation: the Task. predictor: the class of trained models. extra: the extra of this
    package that training needs.
    """

    recipe: str
    implementation: str
    predictor: str
    extra: str = "train"

    @cached_property
    def recipe_class(self) -> Any:
        """The recipe's class."""
        return find(self.recipe)


TASKS = {
    "classification": TaskEntry(
        "lambdanets.training.classification.recipe:ClassificationRecipe",
        "lambdanets.training.classification.task:ClassificationTask",
        "lambdanets.inference.classifier:Classifier",
    ),
    "student": TaskEntry(
        "lambdanets_lab.pseudo.recipe:StudentRecipe",
        "lambdanets_lab.pseudo.student:StudentTask",
        "lambdanets.inference.classifier:Classifier",
    ),
    "detection": TaskEntry(
        "lambdanets.training.detection.recipe:DetectionRecipe",
        "lambdanets.training.detection.task:DetectionTask",
        "lambdanets.inference.detector:Detector",
        "detection",
    ),
    "segmentation": TaskEntry(
        "lambdanets.training.segmentation.recipe:SegmentationRecipe",
        "lambdanets.training.segmentation.task:SegmentationTask",
        "lambdanets.inference.segmenter:Segmenter",
        "detection",
    ),
}


def find(name: str) -> Any:
    """Import "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
