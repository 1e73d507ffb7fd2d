"""Figures of what was detected in a set: truth beside prediction, and precision over recall."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lambdanets.data.coco.annotations import AnnotatedImage, CroppedMask, decode_cropped_mask
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import as_tensor
from lambdanets.data.images import UnreadableImage
from lambdanets.files import atomic_open
from lambdanets.inference.detection import DetectionEvaluation
from lambdanets.inference.detector import Detector
from lambdanets.inference.drawing import contact_sheet, draw_curves_of_precision, overlay

SHEET, CURVES = "predictions.png", "precision_recall.png"
SHOWN = 8
LEAST_SCORE = 0.5  # of what is drawn


def draw_detections(detector: Detector, images: AnnotatedImages, evaluation: DetectionEvaluation, folder: Path) -> None:
    """Write predictions.png, with images spread evenly over the set, and precision_recall.png into a folder."""
    read = evaluation.read
    chosen = [read[place] for place in np.linspace(0, len(read) - 1, min(len(read), SHOWN)).astype(int)]
    rows = []
    for number in chosen:
        try:
            image, known = images.load(number)
        except UnreadableImage:  # since it was evaluated
            continue
        found = detector.detect([as_tensor(image)])[0]
        rows.append((draw_truth(image, known, detector.classes), draw_found(image, found, detector.classes)))
    with atomic_open(folder / SHEET) as file:
        contact_sheet(rows).save(file, "PNG")
    draw_curves_of_precision(evaluation.scores, folder / CURVES)


def draw_truth(image: Image.Image, known: AnnotatedImage, classes: Sequence[str]) -> Image.Image:
    """An image with its annotated objects; crowds are left out."""
    objects = [each for each in known.objects if not each.crowd]
    boxes = torch.tensor([each.box for each in objects]).reshape(-1, 4)
    labels = torch.tensor([each.category + 1 for each in objects], dtype=torch.int64)

    def mask_of(number: int) -> CroppedMask:
        return decode_cropped_mask(objects[number], known.height, known.width)

    return overlay(image, boxes, labels, None, mask_of, classes)


def draw_found(
    image: Image.Image, found: dict[str, Tensor], classes: Sequence[str], least_score: float = LEAST_SCORE
) -> Image.Image:
    """An image with what was found in it with such a score at least."""
    sure = (found["scores"] >= least_score).nonzero().flatten()
    boxes, labels, scores = (found[name][sure] for name in ("boxes", "labels", "scores"))

    def mask_of(number: int) -> CroppedMask:  # one at a time: those of a photograph are large
        return CroppedMask(0, 0, (found["masks"][sure[number], 0] > 0.5).cpu().numpy())

    return overlay(image, boxes, labels, scores, mask_of, classes)
