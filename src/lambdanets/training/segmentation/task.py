"""The segmentation task: data, model and final evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lambdanets.data.batches import Batches
from lambdanets.data.coco.loader import AnnotatedBatch
from lambdanets.data.coco.semantic_masks import SEMANTIC_MASK
from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device
from lambdanets.inference.figures import draw_segmentations
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.inference.segmentation import SegmentationEvaluator
from lambdanets.inference.segmentation_scores import SCORES
from lambdanets.inference.segmenter import Segmenter
from lambdanets.training.coco.loaders import augmented_batches
from lambdanets.training.coco.task import CocoTask
from lambdanets.training.curves import Panels
from lambdanets.training.report import Result
from lambdanets.training.run_log import RunLog
from lambdanets.training.segmentation.augmentation import augment
from lambdanets.training.segmentation.loss import cross_entropy_and_dice
from lambdanets.training.segmentation.model import SegmentationProbe, build_model, make_model_card
from lambdanets.training.segmentation.recipe import SegmentationRecipe


@dataclass(frozen=True)
class SegmentationResult(Result):
    dice: float | None
    iou: float | None
    boundary_f1: float | None


@dataclass
class SegmentationTask(CocoTask):
    """Semantic segmentation."""

    TRAINING_METRICS: ClassVar[tuple[str, ...]] = ("loss", "cross_entropy", "dice_loss")
    VALIDATION_METRICS: ClassVar[tuple[str, ...]] = SCORES
    PANELS: ClassVar[Panels] = (
        ("loss", ("loss",)),
        ("loss terms", ("cross_entropy", "dice_loss")),
        ("mean over the classes, validation images", SCORES),
    )
    BEST_METRIC: ClassVar[str] = "dice"
    RESULT: ClassVar[type[Result]] = SegmentationResult

    recipe: SegmentationRecipe

    @classmethod
    def build(cls, recipe: SegmentationRecipe, classes: Sequence[str]) -> nn.Module:
        return build_model(recipe, classes)

    def probe(self) -> SegmentationProbe:
        return SegmentationProbe(self.recipe, self.classes)

    def training_batches(self, recipe: SegmentationRecipe, batch_slice: BatchSlice) -> Batches[AnnotatedBatch]:
        return augmented_batches(recipe, self.training, batch_slice, augment)

    def inputs(self, batch: AnnotatedBatch) -> tuple[Any, ...]:
        return (torch.stack(batch.images).contiguous(memory_format=torch.channels_last),)

    def losses(self, batch: AnnotatedBatch, recipe: SegmentationRecipe) -> dict[str, Tensor]:
        logits = self.model(*self.inputs(batch))
        targets = torch.stack([target[SEMANTIC_MASK] for target in batch.targets])
        cross_entropy, dice_loss = (losses.sum() for losses in cross_entropy_and_dice(logits, targets))
        loss = cross_entropy + recipe.dice_weight * dice_loss
        return {"loss": loss, "cross_entropy": cross_entropy, "dice_loss": dice_loss}

    def card(self, recipe: SegmentationRecipe) -> SegmenterCard:
        return make_model_card(recipe, self.classes, self.category_ids)

    def evaluator(self, recipe: SegmentationRecipe) -> SegmentationEvaluator:
        return SegmentationEvaluator(Segmenter(self.model, self.card(recipe)), self.validation)

    @torch.compiler.set_stance("force_eager")  # as in validation
    def finish(self, recipe: SegmentationRecipe, folder: Path, log: RunLog) -> dict[str, Any]:
        # Lightning moves the model to the CPU at the end
        model = self.model.to(best_device()).eval()
        segmenter = Segmenter(model, self.card(recipe))
        evaluation = SegmentationEvaluator(segmenter, self.validation).evaluate(workers=recipe.workers)
        draw_segmentations(segmenter, self.validation, evaluation.readable, folder)
        return {
            **evaluation.scores.to_dict(),
            "images": len(evaluation.readable),
            **self.provenance(recipe),
            "unreadable": evaluation.unreadable,
        }
