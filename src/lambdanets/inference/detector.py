"""A trained detector: its model, its card, and what it finds in images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lambdanets.data.coco.annotations import Category
from lambdanets.device import best_device
from lambdanets.errors import InputError
from lambdanets.inference.model_card import DetectorCard
from lambdanets.inference.weights import read_model_file
from lambdanets.models.mask_rcnn import MaskRCNN, mask_rcnn
from lambdanets.models.weights import load_tensors

MASK_THRESHOLD = 0.5  # of a pixel's probability


@dataclass(frozen=True)
class Detector:
    """A model in evaluation mode on the best device, and its card."""

    model: MaskRCNN
    card: DetectorCard

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the categories, in order of the labels, which begin at 1."""
        return self.card.classes

    @property
    def categories(self) -> tuple[Category, ...]:
        """Ids and names of the categories, in order of the labels."""
        return tuple(map(Category, self.card.category_ids, self.card.classes))

    @torch.inference_mode()
    def predict(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """What is found in images (3, H, W) in [0, 1], on the CPU, float32: as `MaskRCNN` gives it."""
        device = next(self.model.parameters()).device
        found = self.model([image.to(device) for image in images])
        return [{name: tensor.cpu() for name, tensor in each.items()} for each in found]


def build_detector(card: DetectorCard, *, drop_path: float = 0.0, **training: Any) -> MaskRCNN:
    """The model of a card, with random weights. drop_path and training: arguments that matter in training alone."""
    options: dict[str, Any] = dict(card.model_options)
    if drop_path:
        options["drop_path_rate"] = drop_path
    return mask_rcnn(
        card.model,
        len(card.classes),
        image_size=card.image_size,
        levels=card.levels,
        pyramid_channels=card.pyramid_channels,
        box_layers=card.box_layers,
        mask_layers=card.mask_layers,
        anchor_scale=card.anchor_scale,
        aspect_ratios=card.aspect_ratios,
        image_mean=card.mean,
        image_std=card.std,
        hide_padding=card.hide_padding,
        mask_threshold=MASK_THRESHOLD,
        backbone_options=options,
        rpn_pre_nms_top_n_test=2 * card.proposals,
        rpn_post_nms_top_n_test=card.proposals,
        box_detections_per_img=card.detections,
        **training,
    )


def load_detector(path: str | Path) -> Detector:
    """The detector in weights.safetensors, in a checkpoint (.ckpt), or in the folder of a run.

    Weights that do not fit raise InputError with the names that differ, as does a file that does not say what it holds.
    """
    tensors, card = read_model_file(Path(path), DetectorCard)
    if len(card.category_ids) != len(card.classes):
        raise InputError(f"{path} does not say which ids its categories have; expected a file that a run left")
    built = build_detector(card)
    load_tensors(built, tensors, str(path))
    built.to(memory_format=torch.channels_last)
    return Detector(built.to(best_device()).eval(), card)
