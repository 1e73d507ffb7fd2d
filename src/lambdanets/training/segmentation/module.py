"""LightningModule of a segmenter: losses and metrics."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lambdanets.data.coco.loader import AnnotatedBatch
from lambdanets.data.coco.semantic_masks import SEMANTIC_MASK
from lambdanets.data.order import BatchSlice
from lambdanets.inference.model_card import SegmenterCard
from lambdanets.inference.segmentation_scores import ImageCounts, count_image, summarize
from lambdanets.inference.segmenter import Segmenter
from lambdanets.training.distributed import all_gather_lists, broadcast_from_rank_zero
from lambdanets.training.module import TrainingModule
from lambdanets.training.segmentation.loss import cross_entropy_and_dice
from lambdanets.training.segmentation.recipe import SegmentationRecipe


class Segmentation(TrainingModule):
    """Trains a segmenter with a recipe. Validation images are segmented whole, at their own resolution."""

    SUMS: ClassVar[tuple[str, ...]] = ("loss", "cross_entropy", "dice_loss")
    recipe: SegmentationRecipe

    def __init__(
        self,
        model: nn.Module,
        recipe: SegmentationRecipe,
        card: SegmenterCard,
        steps_per_epoch: int,
        description: str,
        batch_slice: BatchSlice | None = None,
    ) -> None:
        super().__init__(model, recipe, steps_per_epoch, description, batch_slice)
        self._card = card
        self._counts: list[ImageCounts] = []

    def num_images(self, batch: AnnotatedBatch) -> int:
        return len(batch.images)

    def inputs(self, batch: AnnotatedBatch) -> tuple[Any, ...]:
        return (torch.stack(batch.images).contiguous(memory_format=torch.channels_last),)

    def sums(self, batch: AnnotatedBatch) -> dict[str, Tensor]:
        logits = self.model(*self.inputs(batch))
        targets = torch.stack([target[SEMANTIC_MASK] for target in batch.targets])
        cross_entropy, dice_loss = (losses.sum() for losses in cross_entropy_and_dice(logits, targets))
        loss = cross_entropy + self.recipe.dice_weight * dice_loss
        return {"loss": loss, "cross_entropy": cross_entropy, "dice_loss": dice_loss}

    def on_validation_epoch_start(self) -> None:
        self._counts = []

    # images differ in size, and --compile would compile the model again for many sizes
    @torch.compiler.set_stance("force_eager")
    def validation_step(self, batch: AnnotatedBatch, batch_idx: int) -> None:
        segmenter = Segmenter(self.model, self._card)
        # one image at a time, so that rounding does not depend on the world size
        for index, image, target in zip(batch.indices.tolist(), batch.images, batch.targets, strict=True):
            labels = segmenter.segment([image])[0].labels.numpy()
            self._counts.append(count_image(index, labels, target[SEMANTIC_MASK].cpu().numpy(), len(segmenter.classes)))

    def on_validation_epoch_end(self) -> None:
        counts = all_gather_lists(self._counts)
        self._counts = []
        self.validation_metrics = broadcast_from_rank_zero(lambda: self._compute_metrics(counts))
        if self.validation_metrics:
            self.log("dice", self.validation_metrics["dice"], prog_bar=True, logger=False)

    def _compute_metrics(self, counts: Sequence[ImageCounts]) -> dict[str, float]:
        if not counts:
            return {}
        means = summarize(counts, Segmenter(self.model, self._card).classes).means()
        # None if no readable image has objects
        return {name: float("nan") if value is None else value for name, value in means.items()}

    def format_validation_metrics(self) -> str:
        return f"Dice {self.validation_metrics['dice']:.4f}  IoU {self.validation_metrics['iou']:.4f}"
