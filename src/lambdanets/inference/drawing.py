"""Draws objects and classes over images."""

import colorsys
import math
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import draw_bounding_boxes

from lambdanets.data.coco.annotations import AnnotatedImage
from lambdanets.data.coco.images import BACKGROUND, IGNORED
from lambdanets.data.coco.masks import to_cropped_mask
from lambdanets.inference.detections import Detections
from lambdanets.inference.segmentation_scores import find_boundaries
from lambdanets.terminal import printable

MIN_SIDE = 640  # images with a smaller longer side are enlarged, so that names are legible
_OPACITY = 0.4  # of masks
_GRAY = (128, 128, 128)

Color = tuple[int, int, int]


def distinct_color(index: int) -> Color:
    """Return a color that has a different hue than those of nearby indices."""
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1, (0.85, 0.55)[index // 8 % 2], 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def class_color(label: int) -> Color:
    """Return the color of a class in `overlay_classes`. The background has none; ignored pixels are gray."""
    return _GRAY if label == IGNORED else distinct_color(label - 1)


def brighten(image: Image.Image) -> Image.Image:
    """Return an image of mode "L" or "RGB" for a figure: a dim one is scaled so that 99.9% of its values are in 0..255.

    An image is dim if 99.9% of its values are below 128. Microscopes often use a small part of the range.
    """
    high = np.percentile(np.asarray(image), 99.9)
    return image if high >= 128 else image.point(lambda value: min(255, round(value * 255 / max(high, 1))))


def overlay_classes(image: Image.Image, labels: np.ndarray) -> Image.Image:
    """Tint the pixels of each class but the background, and draw their outlines. labels: uint8 (H, W)."""
    pixels = np.asarray(brighten(image.convert("RGB"))).copy()
    boundary = find_boundaries(labels)
    for label in np.unique(labels).tolist():
        if label != BACKGROUND:
            _paint(pixels, labels == label, boundary, class_color(label), _OPACITY)
    return Image.fromarray(pixels)


def _paint(pixels: np.ndarray, inside: np.ndarray, boundary: np.ndarray, color: Color, opacity: float) -> None:
    """Tint the pixels of a mask in place, and paint those at the boundary."""
    pixels[inside] = ((1 - opacity) * pixels[inside] + opacity * np.asarray(color)).astype(np.uint8)
    pixels[inside & boundary] = color


def draw_ground_truth(image: Image.Image, annotated: AnnotatedImage, classes: tuple[str, ...]) -> Image.Image:
    """Draw the annotated objects of an image, without crowd regions."""
    objects = [obj for obj in annotated.objects if not obj.crowd]
    size = (annotated.height, annotated.width)
    truth = Detections(
        torch.tensor([obj.box for obj in objects]).reshape(-1, 4),
        torch.tensor([obj.category + 1 for obj in objects], dtype=torch.int64),
        torch.zeros(len(objects)),
        [to_cropped_mask(obj.segmentation, *size) for obj in objects],
        size,
        classes,
    )
    return overlay(image, truth, with_scores=False)


def overlay(image: Image.Image, objects: Detections, *, with_scores: bool = True) -> Image.Image:
    """Draw objects on an image, each in its own color; only outlines if there is one class. Small images are enlarged.

    Objects with higher scores, then with larger areas, are above others.
    """
    from scipy.ndimage import binary_erosion  # slow to import

    has_names = len(objects.classes) > 1
    factor = max(1, math.ceil(MIN_SIDE / max(image.size)))
    size = (image.width * factor, image.height * factor)
    pixels = np.asarray(brighten(image.convert("RGB")).resize(size, Image.Resampling.BICUBIC)).copy()
    corners = np.sort(np.asarray(objects.boxes, np.float64).reshape(-1, 2, 2), axis=1).reshape(-1, 4) * factor
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    line_width = max(1, round(max(size) / 400))
    for index in np.argsort(-areas, kind="stable"):
        top, left, mask = objects.crops[index]
        if mask.size:
            inside = mask.repeat(factor, 0).repeat(factor, 1)
            window = pixels[top * factor :, left * factor :][: inside.shape[0], : inside.shape[1]]
            width = line_width if has_names else min(line_width, max(1, min(mask.shape) // 10))
            boundary = ~binary_erosion(inside, iterations=width)
            _paint(window, inside, boundary, distinct_color(int(index)), _OPACITY if has_names else 0.0)
    if not has_names or not len(objects):
        return Image.fromarray(pixels)
    names, scores = objects.class_names, objects.scores.tolist()
    by_score = np.lexsort((areas, scores)).tolist()
    drawn = draw_bounding_boxes(
        torch.from_numpy(pixels).permute(2, 0, 1),
        torch.from_numpy(np.clip(corners[by_score], 0, [size[0] - 1, size[1] - 1] * 2)),
        [printable(names[index]) + (f" {scores[index]:.2f}" if with_scores else "") for index in by_score],
        [distinct_color(index) for index in by_score],
        width=line_width,
        font=str(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")),  # boxes for characters it lacks
        font_size=max(13, max(size) // 60),
        fill_labels=True,
    )
    return to_pil_image(drawn)
