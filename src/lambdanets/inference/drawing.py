"""Draws boxes and masks on images, contact sheets, and precision-recall curves."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.files import atomic_open
from lambdanets.inference.colors import Color, brighten, distinct_color
from lambdanets.terminal import printable

if TYPE_CHECKING:
    from lambdanets.inference.coco_scores import Scores

MIN_SIDE = 640  # images with a smaller longer side are enlarged, so that names are legible
MAX_NAMES = 1000  # more names would not fit; the time to place a name is linear in the number of objects
_OPACITY = 0.4  # of masks
_GAP, _HEADING = 12, 22  # pixels between the images of a contact sheet, and font size of its headings
_MAX_SIDE = 800  # larger images are reduced in a contact sheet

Box = tuple[float, float, float, float]


def overlay(
    image: Image.Image,
    boxes: Tensor,
    labels: Tensor,
    scores: Tensor | None,
    masks: Callable[[int], CroppedMask] | None,
    names: Sequence[str] | None,
) -> Image.Image:
    """Draw objects on an image, each in its own color. Small images are enlarged.

    boxes: (n, 4) as x1, y1, x2, y2 in pixels.
    labels: (n,) from 1.
    scores: (n,), or None for ground truth.
    masks: a function that returns the mask at an index, or None.
    names: class names in order of the labels; None to draw only the outlines of the masks.

    Names overlap neither other names nor small objects. If there is not enough space for all names, those of objects
    with higher scores, then with larger areas, have priority. At most MAX_NAMES are written.
    """
    factor = max(1, math.ceil(MIN_SIDE / max(image.size)))
    size = (image.width * factor, image.height * factor)
    pixels = np.asarray(brighten(image.convert("RGB")).resize(size, Image.Resampling.BICUBIC)).copy()
    corners = np.sort(boxes.detach().cpu().double().numpy().reshape(-1, 2, 2), axis=1).reshape(-1, 4) * factor
    clipped = np.clip(corners, 0, [size[0] - 1, size[1] - 1] * 2)
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    line_width = max(1, round(max(size) / 400))
    by_area = np.argsort(-areas, kind="stable")
    if masks is not None:
        for index in by_area:
            top, left, mask = masks(int(index))
            window = pixels[top * factor :, left * factor :]
            opacity, width = (_OPACITY, line_width) if names else (0.0, min(line_width, max(1, min(mask.shape) // 10)))
            _paint_mask(window, mask.repeat(factor, 0).repeat(factor, 1), distinct_color(int(index)), width, opacity)
    drawn = Image.fromarray(pixels)
    if names is None:
        return drawn
    draw = ImageDraw.Draw(drawn)
    for index in by_area:
        draw.rectangle(tuple(clipped[index]), outline=distinct_color(int(index)), width=line_width)
    confidences = np.zeros(len(areas)) if scores is None else scores.detach().cpu().double().numpy()
    name_boxes: list[Box] = []
    for index in np.lexsort((-areas, -confidences))[:MAX_NAMES]:
        text = printable(names[int(labels[index]) - 1])
        text += "" if scores is None else f" {confidences[index]:.2f}"
        _write_name(draw, text, tuple(clipped[index]), distinct_color(int(index)), clipped, name_boxes)
    return drawn


def _paint_mask(pixels: np.ndarray, mask: np.ndarray, color: Color, line_width: int, opacity: float) -> None:
    """Tint the pixels of a mask in place, and draw its outline inside of it."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return
    bounding_box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    inside, window = mask[bounding_box], pixels[bounding_box]
    eroded = inside
    for _ in range(line_width):
        padded = np.pad(eroded, 1)
        eroded = eroded & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    window[inside] = ((1 - opacity) * window[inside] + opacity * np.asarray(color)).astype(np.uint8)
    window[inside & ~eroded] = color


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans, which is part of Matplotlib. Characters that it does not have are drawn as empty boxes."""
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", size)


def _write_name(
    draw: ImageDraw.ImageDraw, text: str, box: Box, color: Color, boxes: np.ndarray, name_boxes: list[Box]
) -> None:
    """Write a name at the first of four positions at its box where it does not overlap names or small objects, if any.

    boxes: (n, 4), boxes of all objects.
    name_boxes: boxes of the names written so far; the box of this name is added.
    """
    width, height = draw.im.size
    font = _font(max(13, max(width, height) // 60))
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    text_w, text_h = right - left + 4, bottom - top + 4
    small = boxes[(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) < 4 * text_w * text_h]
    occupied = np.concatenate([small, np.array(name_boxes).reshape(-1, 4)])
    x1, y1, x2, y2 = box
    for x, y in ((x1, y1 - text_h), (x1, y1), (x1, y2), (x2 - text_w, y2 - text_h)):
        x, y = max(0, min(x, width - text_w)), max(0, min(y, height - text_h))
        beside = (x >= occupied[:, 2]) | (x + text_w <= occupied[:, 0])
        above_or_below = (y >= occupied[:, 3]) | (y + text_h <= occupied[:, 1])
        if (beside | above_or_below).all():
            name_boxes.append((x, y, x + text_w, y + text_h))
            draw.rectangle(name_boxes[-1], fill=color)
            is_bright = 0.3 * color[0] + 0.6 * color[1] + 0.1 * color[2] > 110
            draw.text((x + 2 - left, y + 2 - top), text, font=font, fill="black" if is_bright else "white")
            return


def contact_sheet(rows: Sequence[tuple[Image.Image, Image.Image]]) -> Image.Image:
    """Make an image with one row per (ground truth, prediction). Large images are reduced."""
    reduced = [[_reduce(image) for image in row] for row in rows]
    widths = [max([image.width for image in column] + [160]) for column in zip(*reduced, strict=True)] or [160, 160]
    heights = [max(image.height for image in row) for row in reduced]
    lefts = (_GAP, widths[0] + 2 * _GAP)
    top = _HEADING + 2 * _GAP
    sheet = Image.new("RGB", (sum(widths) + 3 * _GAP, top + sum(heights) + _GAP * len(heights)), "white")
    draw = ImageDraw.Draw(sheet)
    for left, heading in zip(lefts, ("ground truth", "prediction"), strict=True):
        draw.text((left, _GAP), heading, font=_font(_HEADING), fill="black", anchor="lt")
    for row, height in zip(reduced, heights, strict=True):
        for left, image in zip(lefts, row, strict=True):
            sheet.paste(image, (left, top))
        top += height + _GAP
    return sheet


def _reduce(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    return image


def draw_precision_recall(scores: "Scores", path: Path) -> None:
    """Plot the precision-recall curves of boxes and masks, at IoU 0.5 and 0.75 and averaged over IoUs, to a PNG."""
    from matplotlib.figure import Figure  # slow to import; `overlay` needs neither it nor faster-coco-eval

    from lambdanets.inference.coco_scores import RECALLS

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    summary = scores.summary()
    curves = (
        ("AP50", 0.5, "IoU 0.5", "#1d4ed8"),
        ("AP75", 0.75, "IoU 0.75", "#c2410c"),
        ("AP", None, "mean", "#111827"),
    )
    for axis, (iou_type, title) in zip(figure.subplots(1, 2), (("bbox", "boxes"), ("segm", "masks")), strict=True):
        axis.set(xlabel="recall", ylabel="precision", title=title, xlim=(0, 1), ylim=(0, 1.02))
        axis.grid(alpha=0.3)
        for name, iou, label, color in curves:
            curve, average = scores.curve(iou_type, iou), summary[iou_type][name]
            if curve is not None and average is not None:
                axis.plot(RECALLS, curve, color=color, label=f"{label}: {name} {100 * average:.1f}%", clip_on=False)
        if axis.lines:
            axis.legend(loc="upper right")
        else:
            axis.text(0.5, 0.5, "no objects", ha="center", va="center", color="#64748b")
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)
