"""The detection task: data, model and final evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lambdanets.data.batches import Batches
from lambdanets.data.coco.loader import AnnotatedBatch, evaluation_batches
from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device
from lambdanets.inference.detection import evaluate_detector
from lambdanets.inference.detection_figures import draw_detections
from lambdanets.inference.detector import Detector
from lambdanets.inference.model_card import DetectorCard
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.training.coco.loaders import augmented_batches
from lambdanets.training.coco.task import CocoTask
from lambdanets.training.curves import Panels
from lambdanets.training.detection.augmentation import augment
from lambdanets.training.detection.model import DetectionProbe, build_model, make_model_card
from lambdanets.training.detection.module import LOSSES, VALIDATION_METRICS, Detection
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.metrics_log import MetricsLog
from lambdanets.training.report import Result


@dataclass(frozen=True)
class DetectionResult(Result):
    bbox: dict[str, Any]
    segm: dict[str, Any]


@dataclass
class DetectionTask(CocoTask):
    """Object detection and instance segmentation."""

    METRICS: ClassVar[tuple[str, ...]] = (*Detection.SUMS, *VALIDATION_METRICS)
    PANELS: ClassVar[Panels] = (
        ("loss", ("loss",)),
        ("loss terms", tuple(LOSSES.values())),
        ("average precision on the validation images", tuple(VALIDATION_METRICS)),
    )
    BEST_METRIC: ClassVar[str] = "segm_AP"
    RESULT: ClassVar[type[Result]] = DetectionResult

    recipe: DetectionRecipe
    model: MaskRCNN

    @classmethod
    def build(cls, recipe: DetectionRecipe, classes: Sequence[str]) -> MaskRCNN:
        return build_model(recipe, classes)

    def probe(self) -> DetectionProbe:
        max_objects = max(len(image.objects) for image in self.training.annotations.images)
        return DetectionProbe(self.recipe, len(self.classes), min(max_objects, self.recipe.max_objects))

    def batches(
        self, recipe: DetectionRecipe, batch_slice: BatchSlice
    ) -> tuple[Batches[AnnotatedBatch], Batches[AnnotatedBatch]]:
        training = augmented_batches(recipe, self.training, batch_slice, augment)
        return training, evaluation_batches(self.validation, recipe.batch_size, recipe.workers, batch_slice)

    def card(self, recipe: DetectionRecipe) -> DetectorCard:
        return make_model_card(recipe, self.classes, self.category_ids)

    def make_module(self, recipe: DetectionRecipe, steps_per_epoch: int, batch_slice: BatchSlice) -> Detection:
        return Detection(self.model, recipe, self.validation, steps_per_epoch, self.description(recipe), batch_slice)

    def finish(self, recipe: DetectionRecipe, folder: Path, log: MetricsLog) -> dict[str, Any]:
        # Lightning moves the model to the CPU at the end
        model: Any = self.model.to(best_device()).eval()
        detector = Detector(model, self.card(recipe))
        evaluation = evaluate_detector(detector, self.validation, workers=recipe.workers)
        draw_detections(detector, self.validation, evaluation, folder)
        return {
            **evaluation.scores.to_dict(),
            "images": len(evaluation.readable),
            **self.provenance(recipe),
            "unreadable": evaluation.unreadable,
        }
