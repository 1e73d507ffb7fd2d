"""Drawing of boxes and masks on images, contact sheets, and precision-recall curves."""

import colorsys
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lambdanets.data.coco.segmentations import CroppedMask
from lambdanets.files import atomic_open, encode_utf8
from lambdanets.inference.coco_scores import RECALLS, Scores

MIN_SIDE = 640  # of the longer side, so that names are legible; smaller images are enlarged
MAX_NAMES = 1000  # more would not fit; placing a name takes time linear in the objects
_OPACITY = 0.4
_GAP, _HEADING = 12, 22
_MAX_SIDE = 800  # of an image in a contact sheet

Color = tuple[int, int, int]
Box = tuple[float, float, float, float]


def overlay(
    image: Image.Image,
    boxes: Tensor,
    labels: Tensor,
    scores: Tensor | None,
    masks: Tensor | Callable[[int], CroppedMask] | None,
    names: Sequence[str],
) -> Image.Image:
    """Draw objects on an image, one color each; small images are enlarged.

    boxes: (n, 4) as x1, y1, x2, y2 in pixels. labels: (n,) from 1. scores: (n,), or None for ground truth. names: class
        names in order of the labels. masks: (n, H, W) or (n, 1, H, W), thresholded at 0.5; or a function from the index
        to a mask, to have one in memory; or None.

    Names overlap neither each other nor small objects. If there is no room for all, those of the objects with the
    highest score, then the largest area, are written, at most MAX_NAMES.
    """
    factor = max(1, math.ceil(MIN_SIDE / max(image.size)))
    sides = (image.width * factor, image.height * factor)
    painted = np.asarray(image.convert("RGB").resize(sides, Image.Resampling.BICUBIC)).copy()
    corners = np.sort(boxes.detach().cpu().double().numpy().reshape(-1, 2, 2), axis=1).reshape(-1, 4) * factor
    clipped = np.clip(corners, 0, [sides[0] - 1, sides[1] - 1] * 2)
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    line = max(1, round(max(sides) / 400))
    by_area = np.argsort(-areas, kind="stable")
    if masks is not None:
        for number in by_area:
            top, left, mask = masks(int(number)) if callable(masks) else CroppedMask(0, 0, _inside(masks[number]))
            window = painted[top * factor :, left * factor :]
            _paint(window, mask.repeat(factor, 0).repeat(factor, 1), _color(int(number)), line)
    drawn = Image.fromarray(painted)
    draw = ImageDraw.Draw(drawn)
    for number in by_area:
        draw.rectangle(tuple(clipped[number]), outline=_color(int(number)), width=line)
    confidences = np.zeros(len(areas)) if scores is None else scores.detach().cpu().double().numpy()
    written: list[Box] = []
    for number in np.lexsort((-areas, -confidences))[:MAX_NAMES]:
        text = _printable(names[int(labels[number]) - 1])
        text += "" if scores is None else f" {confidences[number]:.2f}"
        _write(draw, text, tuple(clipped[number]), _color(int(number)), clipped, written)
    return drawn


def _inside(mask: Tensor) -> np.ndarray:
    return (mask.reshape(mask.shape[-2:]) > 0.5).cpu().numpy()


def _color(number: int) -> Color:
    """Consecutive numbers differ strongly in hue, later ones also in saturation."""
    hue = number * 0.618034 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.55)[number // 8 % 2], 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def _paint(painted: np.ndarray, mask: np.ndarray, color: Color, line: int) -> None:
    """Tint a mask's pixels in place, and draw its outline inside the mask."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return
    part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    inside, window = mask[part], painted[part]
    core = inside
    for _ in range(line):
        around = np.pad(core, 1)
        core = core & around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    window[inside] = ((1 - _OPACITY) * window[inside] + _OPACITY * np.asarray(color)).astype(np.uint8)
    window[inside & ~core] = color


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with Matplotlib; characters that it lacks are drawn as empty boxes."""
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", size)


def _printable(text: str) -> str:
    return " ".join(encode_utf8(text).decode().split())


def _write(draw: ImageDraw.ImageDraw, text: str, box: Box, color: Color, boxes: np.ndarray, written: list[Box]) -> None:
    """Write text at the first of four positions at the box that overlaps no other text or small object, if any.

    boxes: (n, 4), of all objects. written: boxes of the texts so far, to which this one is added.
    """
    width, height = draw.im.size
    font = _font(max(13, max(width, height) // 60))
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    text_w, text_h = right - left + 4, bottom - top + 4
    small = boxes[(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) < 4 * text_w * text_h]
    taken = np.concatenate([small, np.array(written).reshape(-1, 4)])
    x1, y1, x2, y2 = box
    for x, y in ((x1, y1 - text_h), (x1, y1), (x1, y2), (x2 - text_w, y2 - text_h)):
        x, y = max(0, min(x, width - text_w)), max(0, min(y, height - text_h))
        free = (x >= taken[:, 2]) | (x + text_w <= taken[:, 0]) | (y >= taken[:, 3]) | (y + text_h <= taken[:, 1])
        if free.all():
            written.append((x, y, x + text_w, y + text_h))
            draw.rectangle(written[-1], fill=color)
            dark = 0.3 * color[0] + 0.6 * color[1] + 0.1 * color[2] > 110
            draw.text((x + 2 - left, y + 2 - top), text, font=font, fill="black" if dark else "white")
            return


def contact_sheet(rows: Sequence[tuple[Image.Image, Image.Image]]) -> Image.Image:
    """One row per image, ground truth on the left and prediction on the right; large images are reduced."""
    shown = [[_reduced(image) for image in row] for row in rows]
    widths = [max([image.width for image in column] + [160]) for column in zip(*shown, strict=True)] or [160, 160]
    heights = [max(image.height for image in row) for row in shown]
    lefts = (_GAP, widths[0] + 2 * _GAP)
    top = _HEADING + 2 * _GAP
    sheet = Image.new("RGB", (sum(widths) + 3 * _GAP, top + sum(heights) + _GAP * len(heights)), "white")
    draw = ImageDraw.Draw(sheet)
    for left, heading in zip(lefts, ("ground truth", "prediction"), strict=True):
        draw.text((left, _GAP), heading, font=_font(_HEADING), fill="black", anchor="lt")
    for row, height in zip(shown, heights, strict=True):
        for left, image in zip(lefts, row, strict=True):
            sheet.paste(image, (left, top))
        top += height + _GAP
    return sheet


def _reduced(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    return image


def draw_precision_recall(scores: Scores, path: Path) -> None:
    """Write a PNG of the precision-recall curves of boxes and masks, at IoU 0.5 and 0.75 and averaged over IoUs."""
    from matplotlib.figure import Figure  # slow to import, and overlays do not need it

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    summary = scores.summary()
    lines = (
        ("AP50", 0.5, "IoU 0.5", "#1d4ed8"),
        ("AP75", 0.75, "IoU 0.75", "#c2410c"),
        ("AP", None, "mean", "#111827"),
    )
    for axis, (kind, title) in zip(figure.subplots(1, 2), (("bbox", "boxes"), ("segm", "masks")), strict=True):
        axis.set(xlabel="recall", ylabel="precision", title=title, xlim=(0, 1), ylim=(0, 1.02))
        axis.grid(alpha=0.3)
        for name, iou, label, color in lines:
            curve, average = scores.curve(kind, iou), summary[kind][name]
            if curve is not None and average is not None:
                axis.plot(RECALLS, curve, color=color, label=f"{label}: {name} {100 * average:.1f}%", clip_on=False)
        if axis.lines:
            axis.legend(loc="upper right")
        else:
            axis.text(0.5, 0.5, "no objects", ha="center", va="center", color="#64748b")
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)
