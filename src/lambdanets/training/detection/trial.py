"""A detector's step on made-up images."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as meta_device

from lambdanets.training.detection.model import build_model
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.memory import Trial


@dataclass(frozen=True)
class DetectionTrial(Trial):
    """Of a recipe, for so many categories, and at most so many objects in an image."""

    recipe: DetectionRecipe
    classes: int
    objects: int = 1

    def build(self) -> nn.Module:
        return build_model(replace(self.recipe, weights=None), self.classes)

    def loss(self, model: nn.Module, images: int, device: torch.device) -> Tensor:
        return self._made_up(model, images) if device.type == "meta" else self._loss(model, images, device)

    def _loss(self, model: Any, images: int, device: torch.device) -> Tensor:
        """Of images of which one is padded, each with as many objects as there may be, as large as itself."""
        size = self.recipe.image_size
        sizes = [(size, size if number else -(-size // 2)) for number in range(images)]
        objects = max(self.objects, self.recipe.sampled_regions // 4, 1)
        boxes = [torch.tensor([[0.0, 0.0, *each[::-1]]], device=device).expand(objects, 4) for each in sizes]
        labels = torch.ones(objects, dtype=torch.int64, device=device)
        losses = model(
            [torch.rand(3, *each, device=device) for each in sizes],
            [
                {"boxes": box, "labels": labels, "masks": torch.ones(objects, *each, dtype=torch.uint8, device=device)}
                for box, each in zip(boxes, sizes, strict=True)
            ],
        )
        return torch.stack(list(losses.values())).sum()

    def _made_up(self, model: Any, images: int) -> Tensor:
        """The sum of what backbone, pyramid and heads compute, the latter for made-up regions: what is found where
        depends on numbers, which the meta device has not."""
        size, stride = self.recipe.image_size, model.backbone.strides[-1]
        side = -(-size // stride) * stride
        padded = [(size, size if number else max(1, size // 2)) for number in range(images)]
        with meta_device.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]  # layers select the positions that are no padding
            maps = list(model.backbone(torch.empty(images, 3, side, side, device="meta"), padded).values())
        logits, offsets = model.rpn.head(maps)
        regions, channels = images * self.recipe.sampled_regions, self.recipe.pyramid_channels
        heads = model.roi_heads
        boxes = heads.box_predictor(heads.box_head(torch.empty(regions, channels, 7, 7, device="meta")))
        masks = heads.mask_predictor(heads.mask_head(torch.empty(-(-regions // 4), channels, 14, 14, device="meta")))
        return torch.stack([each.sum() for each in (*logits, *offsets, *boxes, masks)]).sum()

    @property
    def size(self) -> str:
        return f"{self.recipe.image_size} x {self.recipe.image_size}"
