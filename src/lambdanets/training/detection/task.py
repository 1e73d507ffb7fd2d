"""The detection task: data, model and final evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lambdanets.data.batches import Batches
from lambdanets.data.coco.loader import AnnotatedBatch
from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device
from lambdanets.inference.detection import METRICS, DetectionEvaluator
from lambdanets.inference.detector import Detector
from lambdanets.inference.figures import draw_detections
from lambdanets.inference.model_card import DetectorCard
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.training.coco.loaders import augmented_batches
from lambdanets.training.coco.task import CocoTask
from lambdanets.training.curves import Panels
from lambdanets.training.detection.augmentation import augment
from lambdanets.training.detection.model import DetectionProbe, build_model, make_model_card
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.report import Result
from lambdanets.training.run_log import RunLog

# Names of the losses in torchvision, and in metrics.csv.
LOSS_NAMES = {
    "loss_classifier": "class_loss",
    "loss_box_reg": "box_loss",
    "loss_mask": "mask_loss",
    "loss_objectness": "objectness_loss",
    "loss_rpn_box_reg": "proposal_loss",
}


@dataclass(frozen=True)
class DetectionResult(Result):
    bbox: dict[str, Any]
    segm: dict[str, Any]


@dataclass
class DetectionTask(CocoTask):
    """Object detection and instance segmentation."""

    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss", *LOSS_NAMES.values())
    VALIDATION_METRICS: ClassVar[tuple[str, ...]] = tuple(METRICS)
    PANELS: ClassVar[Panels] = (
        ("loss", ("loss",)),
        ("loss terms", tuple(LOSS_NAMES.values())),
        ("average precision on the validation images", tuple(METRICS)),
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

    def training_batches(self, recipe: DetectionRecipe, batch_slice: BatchSlice) -> Batches[AnnotatedBatch]:
        return augmented_batches(recipe, self.training, batch_slice, augment)

    def inputs(self, batch: AnnotatedBatch) -> tuple[Any, ...]:
        return batch.images, batch.targets

    def num_images(self, batch: AnnotatedBatch) -> int:
        """Return the number of readable images in a batch, or 0 if batch norm would get a single value per channel.

        This happens if the coarsest feature map of the whole batch has one position. Synchronized batch norm can use
        such a batch, because the other ranks have more values.
        """
        if any(isinstance(module, nn.SyncBatchNorm) for module in self.model.modules()):
            return len(batch.images)
        stride = self.model.backbone.strides[-2]
        sizes = [image.shape[-2:] for image in batch.images]
        return len(sizes) if sum(-(-height // stride) * -(-width // stride) for height, width in sizes) > 1 else 0

    def losses(self, batch: AnnotatedBatch, recipe: DetectionRecipe) -> dict[str, Tensor]:
        """Return the losses, each a mean over the regions sampled in a micro-batch, times its number of images."""
        losses = self.model(batch.images, batch.targets)
        sums = {name: losses[key].float() * len(batch.images) for key, name in LOSS_NAMES.items()}
        return {"loss": torch.stack(list(sums.values())).sum()} | sums

    def card(self, recipe: DetectionRecipe) -> DetectorCard:
        return make_model_card(recipe, self.classes, self.category_ids)

    def evaluator(self, recipe: DetectionRecipe) -> DetectionEvaluator:
        return DetectionEvaluator(Detector(self.model, self.card(recipe)), self.validation)

    def finish(self, recipe: DetectionRecipe, folder: Path, log: RunLog) -> dict[str, Any]:
        # Lightning moves the model to the CPU at the end
        model: Any = self.model.to(best_device()).eval()
        detector = Detector(model, self.card(recipe))
        evaluation = DetectionEvaluator(detector, self.validation).evaluate(workers=recipe.workers)
        draw_detections(detector, self.validation, evaluation, folder)
        return {
            **evaluation.scores.to_dict(),
            "images": len(evaluation.readable),
            **self.provenance(recipe),
            "unreadable": evaluation.unreadable,
        }
