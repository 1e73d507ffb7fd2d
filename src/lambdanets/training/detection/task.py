"""The detection task: data, model and final evaluation."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import seed_everything

from lambdanets.data.batches import Batches
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import DetectionBatch, evaluation_batches
from lambdanets.data.coco.sets import report_findings
from lambdanets.data.order import BatchSlice
from lambdanets.data.readable import check_readable
from lambdanets.device import best_device
from lambdanets.inference.detection import evaluate_detector
from lambdanets.inference.detection_figures import draw_detections
from lambdanets.inference.detector import Detector
from lambdanets.inference.weights import file_identity
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.training.curves import Panels
from lambdanets.training.detection.data import open_datasets, write_findings
from lambdanets.training.detection.loaders import training_batches
from lambdanets.training.detection.model import DetectionProbe, build_model, describe, make_model_card
from lambdanets.training.detection.module import LOSSES, VALIDATION_METRICS, Detection
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.distributed import World
from lambdanets.training.metrics_log import MetricsLog
from lambdanets.training.module import prepare_batch_norm
from lambdanets.training.report import Result
from lambdanets.training.task import Task


class DetectionResult(Result):
    bbox: dict[str, Any]
    segm: dict[str, Any]


@dataclass
class DetectionTask(Task):
    """Object detection and instance segmentation."""

    METRICS: ClassVar[tuple[str, ...]] = (*Detection.SUMS, *VALIDATION_METRICS)
    PANELS: ClassVar[Panels] = (
        ("loss", ("loss",)),
        ("loss terms", tuple(LOSSES.values())),
        ("average precision on the validation images", tuple(VALIDATION_METRICS)),
    )
    BEST: ClassVar[str] = "segm_AP"
    RESULT: ClassVar[type[Result]] = DetectionResult

    recipe: DetectionRecipe
    training: AnnotatedImages
    validation: AnnotatedImages
    source: str
    model: MaskRCNN
    initial_weights: dict[str, str] | None = None  # name and hash; None in a resumed run

    def __post_init__(self) -> None:
        categories = self.training.annotations.categories
        self.classes = tuple(category.name for category in categories)
        self.category_ids = tuple(category.id for category in categories)
        self.training_images, self.validation_images = len(self.training), len(self.validation)
        fingerprints = self.training.fingerprint + self.validation.fingerprint
        self.fingerprint = hashlib.sha256(fingerprints.encode()).hexdigest()

    @classmethod
    def open(cls, recipe: DetectionRecipe, world: World, resumed: bool) -> "DetectionTask":
        training, validation, source = open_datasets(recipe)
        if world.is_rank_zero:
            report_findings(training=training, validation=validation)
        for split, images in (("training", training), ("validation", validation)):
            check_readable(images.load, len(images), split, recipe.max_unreadable)
        seed_everything(recipe.seed, verbose=False)
        classes = [category.name for category in training.annotations.categories]
        model = build_model(replace(recipe, weights=None) if resumed else recipe, classes)
        prepare_batch_norm(model, recipe, world.world_size)
        initial_weights = None if resumed or recipe.weights is None else file_identity(Path(recipe.weights))
        return cls(recipe, training, validation, source, model, initial_weights)

    def probe(self) -> DetectionProbe:
        max_objects = max(len(image.objects) for image in self.training.annotations.images)
        return DetectionProbe(self.recipe, len(self.classes), min(max_objects, self.recipe.max_objects))

    def batches(
        self, recipe: DetectionRecipe, batch_slice: BatchSlice
    ) -> tuple[Batches[DetectionBatch], Batches[DetectionBatch]]:
        training = training_batches(recipe, self.training, batch_slice)
        return training, evaluation_batches(self.validation, recipe.batch_size, recipe.workers, batch_slice)

    def description(self, recipe: DetectionRecipe) -> str:
        return describe(recipe, self.classes, self.category_ids)

    def module(self, recipe: DetectionRecipe, steps_per_epoch: int, batch_slice: BatchSlice) -> Detection:
        description = self.description(recipe)
        self._module = Detection(
            self.model, recipe, self.validation, steps_per_epoch, description, batch_slice, self.initial_weights
        )
        return self._module

    def on_start(self, folder: Path) -> None:
        write_findings(folder, training=self.training, validation=self.validation)

    def finish(self, recipe: DetectionRecipe, folder: Path, log: MetricsLog) -> dict[str, Any]:
        # Lightning moves the model to the CPU at the end
        model: Any = self.model.to(best_device()).eval()
        detector = Detector(model, make_model_card(recipe, self.classes, self.category_ids))
        evaluation = evaluate_detector(detector, self.validation, workers=recipe.workers)
        draw_detections(detector, self.validation, evaluation, folder)
        return {
            **evaluation.scores.to_dict(),
            "images": len(evaluation.readable),
            "dropped": {
                "training": self.training.findings.counts(),
                "validation": self.validation.findings.counts(),
            },
            "recipe": recipe.without_changeable_fields().fields(),
            "training_data": {
                "name": recipe.data,
                # the hash of the whole set, because a subset depends on the seed
                "sha256": self.training.parent_fingerprint or self.training.fingerprint,
            },
            "validation_data": {
                "name": recipe.validation_data or recipe.data,
                "sha256": self.validation.fingerprint,
            },
            "initial_weights": self._module.initial_weights,
            "unreadable": evaluation.unreadable,
        }
