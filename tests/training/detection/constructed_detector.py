"""Constructs a detector that detects objects without training, and annotations from its detections.

After a few seconds of training, whether a detector detects anything depends on the processor. This detector has random
weights with four changes: batch norm has the statistics of the images, classes are equally likely on average, their
logits are large, and masks fill their boxes. Its detections, shifted by a tenth of their width, are the ground truth
of training and validation. Thus average precision is neither near 0 nor near 1, also after a few steps with a small
learning rate.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import nms

from data.coco.coco_files import rectangle
from lambdanets.data.batches import Batches
from lambdanets.data.coco.images import without_target
from lambdanets.inference.coco_scores import METRICS
from lambdanets.inference.detections import Detections
from lambdanets.inference.detector import Detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.models.weights import save_weights
from lambdanets.tasks.detection import DetectionTask
from lambdanets.tasks.recipes import DetectionRecipe
from lambdanets.training.initial_weights import build_model
from training.detection.tiny_detection import (
    TWO_CATEGORIES,
    edit_annotations,
    merge_into_two_categories,
    tiny_recipe,
    write_scattered_digits,
)
from training.runs import norms, read_metrics

MIN_SIDE = 6  # pixels; for smaller boxes, a small shift changes the IoU too much


def write_constructed_detector(folder: Path, **changes: Any) -> DetectionRecipe:
    """Write images and annotations into digits/ and the detector into initial.safetensors; return a recipe for them.

    changes: fields of the recipe.
    """
    digits = folder / "digits"
    write_scattered_digits(digits, seed=42)
    merge_into_two_categories(digits / "train.json")
    recipe = tiny_recipe(
        digits,
        validation_data=str(digits / "train.json"),
        validation_images=str(digits / "train"),
        image_size=96,
        anchor_scale=6.0,
        proposals=50,
        sampled_regions=64,
        max_detections=20,
        learning_rate=1e-4,
        batch_norm_momentum=0.001,
        **changes,
    )
    images = DetectionTask(recipe).validation
    batches = Batches(images, without_target, batch_size=recipe.batch_size)
    pixels = [image for batch in batches for image in batch.images]
    names, ids = (tuple(category[field] for category in TWO_CATEGORIES) for field in ("name", "id"))
    card = make_card(DetectorCard, recipe, names, category_ids=ids)
    detector = Detector(_construct(recipe, pixels), card)
    numbers = itertools.count(1)
    annotations = [
        rectangle(next(numbers), *_shifted(box, image.width), image_id=image.id, category_id=ids[label - 1])
        for image, tensor in zip(images.images, pixels, strict=True)
        for label, box in _without_overlap(detector.infer_tensors([tensor])[0])
    ]
    edit_annotations(digits / "train.json", annotations=annotations)
    save_weights(folder / "initial.safetensors", detector.model, card.to_json())
    return replace(recipe, weights=str(folder / "initial.safetensors"))


def assert_nontrivial_metrics(run: Path) -> None:
    """Assert that all validation metrics are between 0.1 and 0.9. Otherwise, equal metrics would prove little."""
    rows = read_metrics(run, "val")
    assert rows
    assert all(0.1 < float(row[name]) < 0.9 for row in rows for name in METRICS), rows


@torch.no_grad()
def _construct(recipe: DetectionRecipe, images: list[Tensor]) -> Any:
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, len(TWO_CATEGORIES)).eval()
    for norm in norms(model.backbone):
        norm.momentum = None  # use the statistics of the next batch
    model.backbone.train()
    model(images)
    model.eval()
    logits: list[Tensor] = []
    cls_score = model.roi_heads.box_predictor.cls_score
    hook = cls_score.register_forward_hook(lambda _, __, output: logits.append(output))
    model(images)
    hook.remove()
    cls_score.bias -= logits[0].mean(0)
    cls_score.weight *= 8
    cls_score.bias *= 8
    model.roi_heads.mask_predictor.mask_fcn_logits.bias.fill_(3.0)
    return model


def _without_overlap(detections: Detections) -> list[tuple[int, list[float]]]:
    """Return labels and boxes of detections with little overlap, by decreasing score."""
    boxes = detections.boxes
    large = ((boxes[:, 2:] - boxes[:, :2]).amin(1) >= MIN_SIDE).nonzero().flatten()
    kept = large[nms(boxes[large], detections.scores[large], 0.2)].tolist()
    return [(int(detections.labels[index]), boxes[index].tolist()) for index in kept]


def _shifted(box: list[float], image_width: int) -> list[float]:
    """Return the box, shifted right by a tenth of its width, or left near the image's right edge."""
    left, top, right, bottom = box
    width = right - left
    left = left + width / 10 if right + width / 10 <= image_width else max(left - width / 10, 0.0)
    return [left, top, left + width, bottom]
