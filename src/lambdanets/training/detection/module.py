"""Losses and metrics of a detector."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import DetectionBatch
from lambdanets.data.order import BatchSlice
from lambdanets.inference.coco_results import Result, coco_results
from lambdanets.inference.coco_scores import evaluate
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.distributed import all_gather_lists, broadcast_from_rank_zero
from lambdanets.training.module import TrainingModule

# torchvision's names of the losses, and those in metrics.csv
LOSSES = {
    "loss_classifier": "class_loss",
    "loss_box_reg": "box_loss",
    "loss_mask": "mask_loss",
    "loss_objectness": "objectness_loss",
    "loss_rpn_box_reg": "proposal_loss",
}
VALIDATED = {
    "bbox_AP": ("bbox", "AP"),
    "bbox_AP50": ("bbox", "AP50"),
    "segm_AP": ("segm", "AP"),
    "segm_AP50": ("segm", "AP50"),
}


class Detection(TrainingModule):
    """Trains a Mask R-CNN by a recipe. validation: images and annotations, scored on rank zero.

    Each loss is a mean over the regions sampled in a micro-batch; micro-batches are weighted by their number of images.
    first_weights: hash of the initial weights (`weights.identified`), stored in checkpoints as the file may be gone at
    the end.
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
        first_weights: dict[str, str] | None = None,
    ) -> None:
        super().__init__(model, recipe, steps_per_epoch, description, batch_slice)
        self.first_weights = first_weights
        self._validation = validation
        self._ids = [category.id for category in validation.annotations.categories]
        self._results: list[Result] = []
        self._read: list[int] = []

    def count(self, batch: DetectionBatch) -> int:
        """Number of readable images in a batch; 0 if their coarsest feature maps have a single position in all.

        Batch norm has no statistics of a single value, unless it is synchronized over ranks.
        """
        if self.recipe.sync_batch_norm and self.batch_slice.world_size > 1:
            return len(batch.images)
        backbone: Any = self.model.backbone
        stride = backbone.strides[-2]
        sizes = [image.shape[-2:] for image in batch.images]
        return len(sizes) if sum(-(-height // stride) * -(-width // stride) for height, width in sizes) > 1 else 0

    def inputs(self, batch: DetectionBatch) -> tuple[Any, ...]:
        return batch.images, batch.targets

    def sums(self, batch: DetectionBatch) -> dict[str, Tensor]:
        losses = self.model(batch.images, batch.targets)
        sums = {ours: losses[theirs].float() * len(batch.images) for theirs, ours in LOSSES.items()}
        return {"loss": torch.stack(list(sums.values())).sum()} | sums

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["first_weights"] = self.first_weights

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.first_weights = checkpoint.get("first_weights")

    def on_validation_epoch_start(self) -> None:
        self._results, self._read = [], []

    def validation_step(self, batch: DetectionBatch, batch_idx: int) -> None:
        # one by one: pasted masks have the size of the image
        for number, image in zip(batch.indices.tolist(), batch.images, strict=True):
            self._read.append(number)
            self._results += coco_results(
                self.model([image])[0], self._validation.annotations.images[number].id, self._ids
            )

    def on_validation_epoch_end(self) -> None:
        results, read = all_gather_lists(self._results), all_gather_lists(self._read)
        self._results = []
        self.validated = broadcast_from_rank_zero(lambda: self._score(results, read))
        if self.validated:
            for name in ("bbox_AP", "segm_AP"):
                self.log(name, self.validated[name], prog_bar=True, logger=False)

    def _score(self, results: Sequence[Result], read: Sequence[int]) -> dict[str, float]:
        if not read:
            return {}
        truth = self._validation.annotations.to_coco(sorted(read))
        summary = evaluate(truth, results, detections=self.recipe.detections).summary()
        # NaN if no readable image had an object
        values = {name: summary[kind][score] for name, (kind, score) in VALIDATED.items()}
        return {name: float("nan") if value is None else value for name, value in values.items()}

    def format_validated(self) -> str:
        return "  ".join(
            f"{name} {self.validated[score]:.4f}" for name, score in (("box AP", "bbox_AP"), ("mask AP", "segm_AP"))
        )
