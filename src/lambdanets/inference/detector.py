"""Trained detectors and their detections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.inference.inputs import ImageInputs, image_batches
from lambdanets.inference.model_card import DetectorCard
from lambdanets.inference.predictor import Predictor
from lambdanets.models.mask_rcnn import MaskRCNN, mask_rcnn
from lambdanets.models.weights import build_with_weights

MASK_THRESHOLD = 0.5  # pixels with a higher probability are in the mask


@dataclass(frozen=True, eq=False, repr=False)
class Detections:
    """The n detections in one image, in descending order of score, on the CPU.

    boxes: (n, 4) float32, x1, y1, x2, y2 in pixels of the image.
    labels: (n,) int64, from 1: the class name is classes[label - 1].
    scores: (n,) float32.
    masks: (n, H, W) bool, in the size of the image.
    classes: names of all classes.
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
        """Return the detections with at least this score."""
        kept = self.scores >= score
        return Detections(self.boxes[kept], self.labels[kept], self.scores[kept], self.masks[kept], self.classes)

    def __repr__(self) -> str:
        objects = zip(self.class_names, self.scores.tolist(), strict=True)
        shown = [f"{name} {score:.3f}" for name, score in islice(objects, 3)]
        return f"Detections({', '.join([f'{len(self)} objects', *shown])}{', ...' if len(self) > 3 else ''})"


@dataclass(frozen=True)
class Detector(Predictor):
    """A trained detector, which `lambdanets.load` returns: a model in evaluation mode and its model card."""

    model: MaskRCNN
    card: DetectorCard

    def __repr__(self) -> str:
        return f"Detector({self.card.model}, {len(self.classes)} classes)"

    @classmethod
    def from_weights(
        cls, card: DetectorCard, tensors: Mapping[str, Tensor], source: str, device: torch.device
    ) -> "Detector":
        """Build a detector from its card and weights. Raises InputError, which names source, if they do not match."""
        model = build_with_weights(lambda: build_detector(card), dict(tensors), source)
        model.to(memory_format=torch.channels_last)
        return cls(model.to(device).eval(), card)

    @property
    def classes(self) -> tuple[str, ...]:
        """Category names, in order of the labels."""
        return self.card.classes

    @property
    def categories(self) -> tuple[Category, ...]:
        """Categories (id and name), in order of the labels."""
        return tuple(map(Category, self.card.category_ids, self.card.classes))

    def predict(
        self,
        images: ImageInputs,
        *,
        batch_size: int = 1,
        channel: int | None = None,
        device: str | torch.device | None = None,
    ) -> list[Detections]:
        """Detect objects in images of any size. Returns the detections of each image, in the same order.

        images, channel, device: as in `Classifier.predict`. The model resizes and normalizes the images.
        batch_size: images per forward pass. All masks of a batch are in memory.
        """
        if device is not None:
            self.to(device)
        detections: list[Detections] = []
        for batch in image_batches(images, batch_size, channel=channel, stretch=self.card.stretch):
            detections += [
                Detections(**tensors | {"masks": tensors["masks"][:, 0]}, classes=self.classes)
                for tensors in self.detect([image_to_tensor(image) for image in batch])
            ]
        return detections

    @torch.inference_mode()
    def detect(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Detect objects in images (3, H, W) in [0, 1]. Returns the outputs of `MaskRCNN`, float32 on the CPU."""
        return [
            {name: (tensor.float() if tensor.is_floating_point() else tensor).cpu() for name, tensor in tensors.items()}
            for tensors in self.outputs(images)
        ]


def build_detector(card: DetectorCard, *, drop_path: float = 0.0, **training_options: Any) -> MaskRCNN:
    """Build the model of a card with random weights. drop_path, training_options: arguments for training only."""
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
        box_detections_per_img=card.max_detections,
        **training_options,
    )
