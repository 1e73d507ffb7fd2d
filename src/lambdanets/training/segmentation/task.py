"""The segmentation task: data, model and final evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from lambdanets.data.batches import Batches
from lambdanets.data.coco.loader import AnnotatedBatch, evaluation_batches
from lambdanets.data.coco.semantic_masks import load_with_semantic_mask
from lambdanets.data.order import BatchSlice
from lambdanets.device import best_device
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.inference.segmentation import evaluate_segmenter
from lambdanets.inference.segmentation_figures import draw_segmentations
from lambdanets.inference.segmentation_scores import SCORES
from lambdanets.inference.segmenter import Segmenter
from lambdanets.training.coco.loaders import augmented_batches
from lambdanets.training.coco.task import CocoTask
from lambdanets.training.curves import Panels
from lambdanets.training.metrics_log import MetricsLog
from lambdanets.training.report import Result
from lambdanets.training.segmentation.augmentation import augment
from lambdanets.training.segmentation.model import SegmentationProbe, build_model, make_model_card
from lambdanets.training.segmentation.module import Segmentation
from lambdanets.training.segmentation.recipe import SegmentationRecipe


@dataclass(frozen=True)
class SegmentationResult(Result):
    dice: float | None
    iou: float | None
    boundary_f1: float | None


@dataclass
class SegmentationTask(CocoTask):
    """Semantic segmentation."""

    METRICS: ClassVar[tuple[str, ...]] = (*Segmentation.SUMS, *SCORES)
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

    def batches(
        self, recipe: SegmentationRecipe, batch_slice: BatchSlice
    ) -> tuple[Batches[AnnotatedBatch], Batches[AnnotatedBatch]]:
        training = augmented_batches(recipe, self.training, batch_slice, augment)
        validation = evaluation_batches(
            self.validation, recipe.batch_size, recipe.workers, batch_slice, load_with_semantic_mask
        )
        return training, validation

    def card(self, recipe: SegmentationRecipe) -> SegmenterCard:
        return make_model_card(recipe, self.classes, self.category_ids)

    def make_module(self, recipe: SegmentationRecipe, steps_per_epoch: int, batch_slice: BatchSlice) -> Segmentation:
        return Segmentation(
            self.model, recipe, self.card(recipe), steps_per_epoch, self.description(recipe), batch_slice
        )

    @torch.compiler.set_stance("force_eager")  # as in validation
    def finish(self, recipe: SegmentationRecipe, folder: Path, log: MetricsLog) -> dict[str, Any]:
        # Lightning moves the model to the CPU at the end
        model = self.model.to(best_device()).eval()
        segmenter = Segmenter(model, self.card(recipe))
        evaluation = evaluate_segmenter(segmenter, self.validation, workers=recipe.workers)
        draw_segmentations(segmenter, self.validation, evaluation.readable, folder)
        return {
            **evaluation.scores.to_dict(),
            "images": len(evaluation.readable),
            **self.provenance(recipe),
            "unreadable": evaluation.unreadable,
        }
