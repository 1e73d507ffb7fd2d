"""LightningModule of a detector: losses and metrics."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import AnnotatedBatch
from lambdanets.data.order import BatchSlice
from lambdanets.inference.coco_results import Result, coco_results
from lambdanets.inference.coco_scores import evaluate
from lambdanets.inference.objects import crop_objects
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.distributed import all_gather_lists, broadcast_from_rank_zero
from lambdanets.training.module import TrainingModule

# Names of the losses: in torchvision, and in metrics.csv.
LOSSES = {
    "loss_classifier": "class_loss",
    "loss_box_reg": "box_loss",
    "loss_mask": "mask_loss",
    "loss_objectness": "objectness_loss",
    "loss_rpn_box_reg": "proposal_loss",
}
# Columns of metrics.csv: iouType of COCOeval, and metric.
VALIDATION_METRICS = {
    "bbox_AP": ("bbox", "AP"),
    "bbox_AP50": ("bbox", "AP50"),
    "segm_AP": ("segm", "AP"),
    "segm_AP50": ("segm", "AP50"),
}


class Detection(TrainingModule):
    """Trains a Mask R-CNN with a recipe.

    Each loss is a mean over the regions sampled in a micro-batch. Micro-batches are weighted by their number of images.

    validation: images and annotations; rank zero computes the metrics.
    """

    SUMS: ClassVar[tuple[str, ...]] = ("loss", *LOSSES.values())
    recipe: DetectionRecipe

    def __init__(
        self,
        model: MaskRCNN,
        recipe: DetectionRecipe,
        validation: AnnotatedImages,
        steps_per_epoch: int,
        description: str,
        batch_slice: BatchSlice | None = None,
    ) -> None:
        super().__init__(model, recipe, steps_per_epoch, description, batch_slice)
        self._validation = validation
        self._category_ids = [category.id for category in validation.annotations.categories]
        self._results: list[Result] = []
        self._readable_indices: list[int] = []  # indices of the readable validation images

    def num_images(self, batch: AnnotatedBatch) -> int:
        """Return the number of readable images in a batch, or 0 if batch norm would get a single value per channel.

        This happens if the coarsest feature map of the whole batch has one position. Synchronized batch norm can use
        such a batch, because the other ranks have more values.
        """
        if self.recipe.sync_batch_norm and self.batch_slice.world_size > 1:
            return len(batch.images)
        backbone: Any = self.model.backbone
        stride = backbone.strides[-2]
        sizes = [image.shape[-2:] for image in batch.images]
        return len(sizes) if sum(-(-height // stride) * -(-width // stride) for height, width in sizes) > 1 else 0

    def inputs(self, batch: AnnotatedBatch) -> tuple[Any, ...]:
        return batch.images, batch.targets

    def sums(self, batch: AnnotatedBatch) -> dict[str, Tensor]:
        losses = self.model(batch.images, batch.targets)
        sums = {name: losses[key].float() * len(batch.images) for key, name in LOSSES.items()}
        return {"loss": torch.stack(list(sums.values())).sum()} | sums

    def on_validation_epoch_start(self) -> None:
        self._results, self._readable_indices = [], []

    def validation_step(self, batch: AnnotatedBatch, batch_idx: int) -> None:
        # one image at a time, because masks are pasted at the size of the image
        for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
            self._readable_indices.append(index)
            self._results += coco_results(
                crop_objects(self.model([image])[0]), self._validation.annotations.images[index].id, self._category_ids
            )

    def on_validation_epoch_end(self) -> None:
        results, indices = all_gather_lists(self._results), all_gather_lists(self._readable_indices)
        self._results = []
        self.validation_metrics = broadcast_from_rank_zero(lambda: self._compute_metrics(results, indices))
        if self.validation_metrics:
            for name in ("bbox_AP", "segm_AP"):
                self.log(name, self.validation_metrics[name], prog_bar=True, logger=False)

    def _compute_metrics(self, results: Sequence[Result], indices: Sequence[int]) -> dict[str, float]:
        if not indices:
            return {}
        ground_truth = self._validation.annotations.to_coco(sorted(indices))
        summary = evaluate(ground_truth, results, max_detections=self.recipe.max_detections).summary()
        # None if no readable image has objects
        values = {name: summary[iou_type][metric] for name, (iou_type, metric) in VALIDATION_METRICS.items()}
        return {name: float("nan") if value is None else value for name, value in values.items()}

    def format_validation_metrics(self) -> str:
        return f"box AP {self.validation_metrics['bbox_AP']:.4f}  mask AP {self.validation_metrics['segm_AP']:.4f}"
