"""Figures: objects and classes drawn over images."""

import colorsys
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, to_pil_image
from torchvision.utils import draw_bounding_boxes

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import BACKGROUND, IGNORED
from lambdanets.data.coco.segmentations import to_cropped_mask
from lambdanets.files import atomic_open
from lambdanets.inference.detections import Detections
from lambdanets.inference.segmentation_scores import find_boundaries
from lambdanets.terminal import printable

MIN_SIDE = 640  # images with a smaller longer side are enlarged, so that names are legible
_OPACITY = 0.4  # of masks
SHEET = "predictions.png"  # of an evaluation


def distinct_color(index: int) -> tuple[int, int, int]:
    """Return a color that has a different hue than those of nearby indices."""
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1, (0.85, 0.55)[index // 8 % 2], 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def brighten(image: Image.Image) -> Image.Image:
    """Return an image of mode "L" or "RGB" for a figure: a dim one is scaled so that 99.9% of its values are in 0..255.

    An image is dim if 99.9% of its values are below 128. Microscopes often use a small part of the range.
    """
    high = np.percentile(np.asarray(image), 99.9)
    return image if high >= 128 else image.point(lambda value: min(255, round(value * 255 / max(high, 1))))


def overlay_classes(image: Image.Image, labels: np.ndarray) -> Image.Image:
    """Tint the pixels of each class, and draw their outlines, except those of the background and ignored pixels.

    labels: uint8 (H, W).
    """
    known = np.where(labels == IGNORED, BACKGROUND, labels)
    return _tint(brighten(image.convert("RGB")), known, find_boundaries(labels))


def _tint(image: Image.Image, labels: np.ndarray, boundaries: np.ndarray, opacity: float = _OPACITY) -> Image.Image:
    """Return an image with the color of each label, mixed with its pixels by the opacity, but pure at boundaries.

    The color of label i is `distinct_color(i - 1)`, and pixels with label 0 have none. Changes `boundaries` in place.
    """
    inside = labels > 0
    colors = np.array([distinct_color(index) for index in range(-1, labels.max())], np.uint8)
    painted = Image.fromarray(colors[labels])
    tinted = Image.composite(Image.blend(image, painted, opacity), image, Image.fromarray(inside))
    side = math.sqrt(inside.sum() / max(labels.max(), 1))  # of an object, on average
    for _ in range(round(min(max(image.size) / 1000, side / 10))):  # outlines are visible, but do not fill objects
        for pixels in (boundaries, boundaries.T):
            pixels[1:] |= pixels[:-1]
            pixels[:-1] |= pixels[1:]
    return Image.composite(painted, tinted, Image.fromarray(inside & boundaries))


def draw_ground_truth(image: Image.Image, annotated: AnnotatedImage, classes: tuple[str, ...]) -> Image.Image:
    """Draw the annotated objects of an image, without crowd regions. Where they overlap, the smallest is shown."""
    objects = sorted((obj for obj in annotated.objects if not obj.crowd), key=lambda obj: obj.area)
    size = (annotated.height, annotated.width)
    truth = Detections(
        torch.tensor([obj.box for obj in objects]).reshape(-1, 4),
        torch.tensor([obj.category + 1 for obj in objects], dtype=torch.int64),
        torch.ones(len(objects)),
        [to_cropped_mask(obj.segmentation, *size) for obj in objects],
        size,
        classes,
    )
    return overlay(image, *truth.label_image(), with_scores=False)


def overlay(image: Image.Image, labels: np.ndarray, objects: Detections, *, with_scores: bool = True) -> Image.Image:
    """Draw the label image of objects on an image, each in its own color. Small images are enlarged.

    Objects of several classes are tinted, and boxes with their names are drawn, the best above others.
    labels, objects: from `Detections.label_image`.
    """
    import matplotlib

    has_names = len(objects.classes) > 1
    factor = max(1, math.ceil(MIN_SIDE / max(image.size)))
    size = (image.width * factor, image.height * factor)
    large = brighten(image.convert("RGB")).resize(size, Image.Resampling.BICUBIC)
    labels = labels.repeat(factor, 0).repeat(factor, 1)
    boundaries = find_boundaries(np.pad(labels, 1), -1)[1:-1, 1:-1]  # also at the edge of the image
    tinted = _tint(large, labels, boundaries, _OPACITY if has_names else 0.0)
    if not has_names or not len(objects):
        return tinted
    names, scores, worst_first = objects.class_names, objects.scores.tolist(), range(len(objects))[::-1]
    corners = (objects.boxes * factor).clip(torch.zeros(4), torch.tensor(size * 2) - 1)
    drawn = draw_bounding_boxes(
        pil_to_tensor(tinted),
        corners.flip(0),
        [printable(names[index]) + (f" {scores[index]:.2f}" if with_scores else "") for index in worst_first],
        [distinct_color(index) for index in worst_first],
        width=max(1, round(max(size) / 400)),
        font=str(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")),  # boxes for characters it lacks
        font_size=max(13, max(size) // 60),
        fill_labels=True,
    )
    return to_pil_image(drawn)


def new_figure(width: float, height: float) -> Any:
    """Return a figure of a size in inches."""
    from matplotlib.figure import Figure  # here, since drawing on images does not need it

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    with atomic_open(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for class names in other scripts
        figure.savefig(file, format="png", dpi=110)
