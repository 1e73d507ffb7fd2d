"""Figures of segmentations: the classes of the pixels as colors over the image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.data.coco.semantic_masks import BACKGROUND, IGNORED, make_semantic_mask
from lambdanets.data.images import UnreadableImage
from lambdanets.files import atomic_open
from lambdanets.inference.colors import Color, brighten, distinct_color
from lambdanets.inference.segmentation_scores import find_boundaries
from lambdanets.inference.segmenter import Segmenter

SHEET = "predictions.png"  # file name
MAX_SHOWN = 8  # images
_OPACITY = 0.4
_GRAY: Color = (128, 128, 128)


def class_color(label: int) -> Color:
    """Return the color of a class in `overlay_classes`. The background has none; ignored pixels are gray."""
    return _GRAY if label == IGNORED else distinct_color(label - 1)


def overlay_classes(image: Image.Image, labels: np.ndarray) -> Image.Image:
    """Tint the pixels of each class but the background, and draw their outlines. labels: uint8 (H, W)."""
    pixels = np.asarray(brighten(image.convert("RGB"))).copy()
    boundary = find_boundaries(labels)
    for label in np.unique(labels).tolist():
        if label == BACKGROUND:
            continue
        inside, color = labels == label, class_color(label)
        pixels[inside] = ((1 - _OPACITY) * pixels[inside] + _OPACITY * np.asarray(color)).astype(np.uint8)
        pixels[inside & boundary] = color
    return Image.fromarray(pixels)


def draw_segmentations(segmenter: Segmenter, images: AnnotatedImages, readable: Sequence[int], folder: Path) -> None:
    """Write predictions.png into a folder: targets and predictions of evenly spaced images.

    readable: indices of the readable images.
    """
    from lambdanets.inference.drawing import contact_sheet  # imports Matplotlib, which `overlay_classes` does not need

    rows = []
    for position in np.linspace(0, len(readable) - 1, min(len(readable), MAX_SHOWN)).astype(int):
        try:
            image, annotated = images.load(readable[position])
        except UnreadableImage:  # it was removed or damaged after the evaluation
            continue
        (predicted,) = segmenter.segment([image_to_tensor(image)])
        target = make_semantic_mask(annotated)
        rows.append((overlay_classes(image, target), overlay_classes(image, predicted.labels.numpy())))
    with atomic_open(folder / SHEET) as file:
        contact_sheet(rows).save(file, "PNG")
