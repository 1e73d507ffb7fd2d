"""Builds the model of a detection recipe, its model card and its memory probe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as meta_device

from lambdanets.inference.detector import build_detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.models.mask_rcnn import MaskRCNN
from lambdanets.models.padding import padded_batch
from lambdanets.models.weights import match_names
from lambdanets.training.detection.recipe import DetectionRecipe
from lambdanets.training.initial_weights import read_initial_weights
from lambdanets.training.memory import MemoryProbe

# Prefixes of the tensors of the last layers.
_HEADS = ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits.")


def make_model_card(recipe: DetectionRecipe, classes: Sequence[str], category_ids: Sequence[int]) -> DetectorCard:
    """Return the model card of the recipe's detector."""
    categories = {"classes": tuple(classes), "category_ids": tuple(category_ids)}
    return make_card(DetectorCard, recipe, **categories, stretch=False, tile_size=None)


def build_model(recipe: DetectionRecipe, classes: int | Sequence[str]) -> MaskRCNN:
    """Build the recipe's model for a number of categories or for category names, and load its initial weights, if any.

    The weights may be those of a detector or of a classifier. From a classifier, only the backbone is loaded. If a
    detector has other categories, its last layers are re-initialized.
    """
    class_names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    card = make_model_card(recipe, class_names, range(len(class_names)))
    model = build_detector(
        card,
        drop_path=recipe.drop_path,
        rpn_pre_nms_top_n_train=2 * recipe.proposals,
        rpn_post_nms_top_n_train=recipe.proposals,
        box_batch_size_per_image=recipe.sampled_regions,
    )
    model.transform._skip_resize = True  # in training, the data loader has resized the images
    if recipe.weights is not None:
        _load_initial_weights(model, recipe.weights, classes)
    return model.to(memory_format=torch.channels_last)


def _load_initial_weights(model: MaskRCNN, path: str, classes: int | Sequence[str]) -> None:
    weights = read_initial_weights(path, classes)
    module: nn.Module = model
    if not any("backbone.network." in name for name in weights.tensors):  # weights of a classifier
        module = model.backbone.network
        names = module.state_dict().keys()
        tensors = match_names(weights.tensors, names, weights.source)
        weights = weights._replace(tensors={name: tensors[name] for name in names & tensors.keys()})
    weights.load_into(module, _HEADS)


@dataclass(frozen=True)
class DetectionProbe(MemoryProbe):
    """Forward pass and losses of a detector on synthetic images, to estimate memory.

    num_objects: number of objects per image.
    """

    recipe: DetectionRecipe
    num_classes: int
    num_objects: int = 1

    def build(self) -> nn.Module:
        return build_model(replace(self.recipe, weights=None), self.num_classes)

    def loss(self, model: nn.Module, batch_size: int, device: torch.device) -> Tensor:
        return self._meta_loss(model, batch_size) if device.type == "meta" else self._loss(model, batch_size, device)

    def _loss(self, model: Any, batch_size: int, device: torch.device) -> Tensor:
        """Return the loss of images with num_objects objects, each as large as the image.

        The first image has half the width of the others and is padded.
        """
        size = self.recipe.image_size
        shapes = [(size, size if index else -(-size // 2)) for index in range(batch_size)]
        num_objects = max(self.num_objects, self.recipe.sampled_regions // 4, 1)
        boxes = [torch.tensor([[0.0, 0.0, *shape[::-1]]], device=device).expand(num_objects, 4) for shape in shapes]
        labels = torch.ones(num_objects, dtype=torch.int64, device=device)
        masks = [torch.ones(num_objects, *shape, dtype=torch.uint8, device=device) for shape in shapes]
        losses = model(
            [torch.rand(3, *shape, device=device) for shape in shapes],
            [
                {"boxes": image_boxes, "labels": labels, "masks": image_masks}
                for image_boxes, image_masks in zip(boxes, masks, strict=True)
            ],
        )
        return torch.stack(list(losses.values())).sum()

    def _meta_loss(self, model: Any, batch_size: int) -> Tensor:
        """Return the sum of all outputs of backbone, pyramid and heads on the meta device.

        The heads get synthetic regions, because proposals depend on values, which meta tensors do not have.
        """
        size, stride = self.recipe.image_size, model.backbone.strides[-1]
        side = -(-size // stride) * stride
        shapes = [(size, size if index else max(1, size // 2)) for index in range(batch_size)]
        # Layers index the positions outside the padding. PyTorch declares no types of this config module.
        assume = meta_device.patch(meta_nonzero_assume_all_nonzero=True)  # type: ignore[attr-defined]
        with assume, padded_batch(shapes, (side, side)):
            maps = list(model.backbone(torch.empty(batch_size, 3, side, side, device="meta")).values())
        logits, offsets = model.rpn.head(maps)
        num_regions, channels = batch_size * self.recipe.sampled_regions, self.recipe.pyramid_channels
        heads = model.roi_heads
        boxes = heads.box_predictor(heads.box_head(torch.empty(num_regions, channels, 7, 7, device="meta")))
        num_positive = -(-num_regions // 4)
        masks = heads.mask_predictor(heads.mask_head(torch.empty(num_positive, channels, 14, 14, device="meta")))
        return torch.stack([output.sum() for output in (*logits, *offsets, *boxes, masks)]).sum()
