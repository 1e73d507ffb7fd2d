"""Figures of detections: ground truth next to predictions, and precision-recall curves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lambdanets.data.coco.annotations import AnnotatedImage, CroppedMask, decode_cropped_mask
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.data.images import UnreadableImage
from lambdanets.files import atomic_open
from lambdanets.inference.detection import DetectionEvaluation
from lambdanets.inference.detector import Detector
from lambdanets.inference.drawing import contact_sheet, draw_precision_recall, overlay
from lambdanets.inference.objects import Objects, crop_objects

SHEET, CURVES = "predictions.png", "precision_recall.png"  # file names
MAX_SHOWN = 8  # images
MIN_SCORE = 0.5  # detections with lower scores are not drawn


def draw_detections(detector: Detector, images: AnnotatedImages, evaluation: DetectionEvaluation, folder: Path) -> None:
    """Write predictions.png, with evenly spaced images of the set, and precision_recall.png into a folder."""
    readable = evaluation.readable
    chosen = [readable[index] for index in np.linspace(0, len(readable) - 1, min(len(readable), MAX_SHOWN)).astype(int)]
    rows = []
    for index in chosen:
        try:
            image, annotated = images.load(index)
        except UnreadableImage:  # it was removed or damaged after the evaluation
            continue
        objects = crop_objects(detector.detect([image_to_tensor(image)])[0])
        rows.append(
            (draw_ground_truth(image, annotated, detector.classes), draw_predicted(image, objects, detector.classes))
        )
    with atomic_open(folder / SHEET) as file:
        contact_sheet(rows).save(file, "PNG")
    draw_precision_recall(evaluation.scores, folder / CURVES)


def draw_ground_truth(image: Image.Image, annotated: AnnotatedImage, classes: Sequence[str]) -> Image.Image:
    """Draw the annotated objects of an image, without crowd regions."""
    objects = [obj for obj in annotated.objects if not obj.crowd]
    boxes = torch.tensor([obj.box for obj in objects]).reshape(-1, 4)
    labels = torch.tensor([obj.category + 1 for obj in objects], dtype=torch.int64)

    def decode(index: int) -> CroppedMask:
        return decode_cropped_mask(objects[index], annotated.height, annotated.width)

    return overlay(image, boxes, labels, None, decode, classes)


def draw_predicted(
    image: Image.Image, objects: Objects, classes: Sequence[str], min_score: float = MIN_SCORE
) -> Image.Image:
    """Draw the objects in an image that have at least min_score; only outlines if there is one class."""
    kept = objects.above(min_score)
    names = classes if len(classes) > 1 else None
    return overlay(image, kept.boxes, kept.labels, kept.scores, kept.masks.__getitem__, names)
