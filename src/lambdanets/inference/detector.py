"""Detectors: model, model card and detections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.device import resolve_device
from lambdanets.errors import InputError
from lambdanets.inference.inputs import ImageInputs, image_batches
from lambdanets.inference.model_card import DetectorCard
from lambdanets.inference.weights import read_model_file
from lambdanets.models.mask_rcnn import MaskRCNN, mask_rcnn
from lambdanets.models.weights import load_tensors

MASK_THRESHOLD = 0.5  # of a pixel's probability


@dataclass(frozen=True, eq=False, repr=False)
class Detections:
    """Detections in one image, in descending order of score, on the CPU.

    boxes: (n, 4) float32, x1, y1, x2, y2 in the image's pixels. labels: (n,) int64, from 1: classes[label - 1].
    scores: (n,) float32. masks: (n, H, W) bool, of the image's size. classes: names of all classes.
    """

    boxes: Tensor
    labels: Tensor
    scores: Tensor
    masks: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class name of each detection."""
        return tuple(self.classes[label - 1] for label in self.labels.tolist())

    def above(self, score: float) -> "Detections":
        """The detections with at least this score."""
        kept = self.scores >= score
        return Detections(self.boxes[kept], self.labels[kept], self.scores[kept], self.masks[kept], self.classes)

    def __repr__(self) -> str:
        objects = zip(self.class_names, self.scores.tolist(), strict=True)
        shown = [f"{name} {score:.3f}" for name, score in islice(objects, 3)]
        return f"Detections({', '.join([f'{len(self)} objects', *shown])}{', ...' if len(self) > 3 else ''})"


@dataclass(frozen=True)
class Detector:
    """A trained detector: a model in evaluation mode, and its card, as `lambdanets.load` gives them."""

    model: MaskRCNN
    card: DetectorCard

    def __repr__(self) -> str:
        return f"Detector({self.card.model}, {len(self.classes)} classes)"

    @classmethod
    def from_weights(
        cls, card: DetectorCard, tensors: Mapping[str, Tensor], source: str, device: torch.device
    ) -> "Detector":
        """Build a detector from its card and weights. Raises InputError, which names source, for other weights."""
        if len(card.category_ids) != len(card.classes):
            raise InputError(f"{source} does not say which ids its categories have; expected a file that a run left")
        model = build_detector(card)
        load_tensors(model, dict(tensors), source)
        model.to(memory_format=torch.channels_last)
        return cls(model.to(device).eval(), card)

    @property
    def classes(self) -> tuple[str, ...]:
        """Category names in order of the labels, which start at 1."""
        return self.card.classes

    @property
    def categories(self) -> tuple[Category, ...]:
        """Ids and names of the categories, in order of the labels."""
        return tuple(map(Category, self.card.category_ids, self.card.classes))

    def predict(
        self, images: ImageInputs, *, batch_size: int = 1, device: str | torch.device | None = None
    ) -> list[Detections]:
        """Detect objects in images of any size, in their order.

        images, device: as in `Classifier.predict`. The model resizes and normalizes images itself.
        batch_size: images per forward pass, whose masks are in memory together.
        """
        if device is not None:
            self.to(device)
        detections: list[Detections] = []
        for batch in image_batches(images, batch_size):
            detections += [
                Detections(**each | {"masks": each["masks"][:, 0]}, classes=self.classes)
                for each in self.detect([image_to_tensor(image) for image in batch])
            ]
        return detections

    @torch.inference_mode()
    def detect(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Detections in images (3, H, W) in [0, 1], in the format of `MaskRCNN`, float32 on the CPU."""
        device = next(self.model.parameters()).device
        detections = self.model([image.to(device) for image in images])
        return [{name: tensor.cpu() for name, tensor in each.items()} for each in detections]

    def to(self, device: str | torch.device) -> Self:
        """Move the model in place. Raises InputError for a missing device."""
        self.model.to(resolve_device(device))
        return self


def build_detector(card: DetectorCard, *, drop_path: float = 0.0, **training: Any) -> MaskRCNN:
    """Build a card's model with random weights. drop_path and training: arguments for training only."""
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


def load_detector(path: str | Path, device: str | torch.device | None = None) -> Detector:
    """Load a detector from weights.safetensors, a checkpoint (.ckpt) or a run folder.

    Raises InputError, with the names that differ, if the weights do not match the model, and for a file without a model
    card.
    """
    target = resolve_device(device)
    tensors, card = read_model_file(Path(path), DetectorCard)
    return Detector.from_weights(card, tensors, str(path), target)
