"""Pictures of objects in images, truth beside prediction, and of precision over recall."""

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
from lambdanets.files import atomic_open, printable_bytes
from lambdanets.inference.coco_scores import RECALLS, Scores

LEAST_SIDE = 640  # of a picture's longer side: of smaller images the names could not be read
MOST_NAMES = 1000  # more would find no room; each is held against all objects
_OPACITY = 0.4
_GAP, _HEADING = 12, 22
_MOST_SIDE = 800  # of a picture in a contact sheet

Colour = tuple[int, int, int]
Box = tuple[float, float, float, float]


def overlay(
    image: Image.Image,
    boxes: Tensor,
    labels: Tensor,
    scores: Tensor | None,
    masks: Tensor | Callable[[int], CroppedMask] | None,
    names: Sequence[str],
) -> Image.Image:
    """An image with objects drawn over it, each in a colour of its own; a small image is enlarged.

    boxes: (n, 4) as x1, y1, x2, y2 in pixels. labels: (n,) from 1. scores: (n,), or None for truth. masks: (n, H, W) or
        (n, 1, H, W), inside above 0.5, or what makes that of a number, so that there is one at a time; or None. names:
        of the classes, that of label 1 first.

    Names hide neither each other nor small objects: where there is no room for all, those of the surest, then of the
    largest objects are written, of the first MOST_NAMES at most.
    """
    factor = max(1, math.ceil(LEAST_SIDE / max(image.size)))
    sides = (image.width * factor, image.height * factor)
    painted = np.asarray(image.convert("RGB").resize(sides, Image.Resampling.BICUBIC)).copy()
    corners = np.sort(boxes.detach().cpu().double().numpy().reshape(-1, 2, 2), axis=1).reshape(-1, 4) * factor
    places = np.clip(corners, 0, [sides[0] - 1, sides[1] - 1] * 2)
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    line = max(1, round(max(sides) / 400))
    by_area = np.argsort(-areas, kind="stable")
    if masks is not None:
        for number in by_area:
            top, left, mask = masks(int(number)) if callable(masks) else CroppedMask(0, 0, _inside(masks[number]))
            window = painted[top * factor :, left * factor :]
            _paint(window, mask.repeat(factor, 0).repeat(factor, 1), _colour(int(number)), line)
    picture = Image.fromarray(painted)
    draw = ImageDraw.Draw(picture)
    for number in by_area:
        draw.rectangle(tuple(places[number]), outline=_colour(int(number)), width=line)
    sureness = np.zeros(len(areas)) if scores is None else scores.detach().cpu().double().numpy()
    written: list[Box] = []
    for number in np.lexsort((-areas, -sureness))[:MOST_NAMES]:
        text = _printable(names[int(labels[number]) - 1])
        text += "" if scores is None else f" {sureness[number]:.2f}"
        _write(draw, text, tuple(places[number]), _colour(int(number)), places, written)
    return picture


def _inside(mask: Tensor) -> np.ndarray:
    return (mask.reshape(mask.shape[-2:]) > 0.5).cpu().numpy()


def _colour(number: int) -> Colour:
    """Neighbours in number are far from each other in hue, and later rounds differ in strength."""
    hue = number * 0.618034 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.55)[number // 8 % 2], 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def _paint(painted: np.ndarray, mask: np.ndarray, colour: Colour, line: int) -> None:
    """Tint a mask's pixels in place, and draw the line around it within."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return
    part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    inside, window = mask[part], painted[part]
    core = inside
    for _ in range(line):
        around = np.pad(core, 1)
        core = core & around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    window[inside] = ((1 - _OPACITY) * window[inside] + _OPACITY * np.asarray(colour)).astype(np.uint8)
    window[inside & ~core] = colour


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib; scripts that it lacks are drawn as empty boxes."""
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", size)


def _printable(text: str) -> str:
    return " ".join(printable_bytes(text).decode().split())


def _write(
    draw: ImageDraw.ImageDraw, text: str, box: Box, colour: Colour, places: np.ndarray, written: list[Box]
) -> None:
    """Write at the first place by the box, of four, that is free of texts and small objects, and add it to `written`.

    Where none is free nothing is written. places: (n, 4), boxes of all objects.
    """
    width, height = draw.im.size
    font = _font(max(13, max(width, height) // 60))
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    across, down = right - left + 4, bottom - top + 4
    small = places[(places[:, 2] - places[:, 0]) * (places[:, 3] - places[:, 1]) < 4 * across * down]
    taken = np.concatenate([small, np.array(written).reshape(-1, 4)])
    x1, y1, x2, y2 = box
    for x, y in ((x1, y1 - down), (x1, y1), (x1, y2), (x2 - across, y2 - down)):
        x, y = max(0, min(x, width - across)), max(0, min(y, height - down))
        beside = (x >= taken[:, 2]) | (x + across <= taken[:, 0]) | (y >= taken[:, 3]) | (y + down <= taken[:, 1])
        if beside.all():
            written.append((x, y, x + across, y + down))
            draw.rectangle(written[-1], fill=colour)
            dark = 0.3 * colour[0] + 0.6 * colour[1] + 0.1 * colour[2] > 110
            draw.text((x + 2 - left, y + 2 - top), text, font=font, fill="black" if dark else "white")
            return


def contact_sheet(rows: Sequence[tuple[Image.Image, Image.Image]]) -> Image.Image:
    """A row an image: the picture of the truth, and beside it that of the prediction; large ones are made smaller."""
    shown = [[_reduced(picture) for picture in row] for row in rows]
    widths = [max([picture.width for picture in column] + [160]) for column in zip(*shown, strict=True)] or [160, 160]
    heights = [max(picture.height for picture in row) for row in shown]
    lefts = (_GAP, widths[0] + 2 * _GAP)
    top = _HEADING + 2 * _GAP
    sheet = Image.new("RGB", (sum(widths) + 3 * _GAP, top + sum(heights) + _GAP * len(heights)), "white")
    draw = ImageDraw.Draw(sheet)
    for left, heading in zip(lefts, ("truth", "prediction"), strict=True):
        draw.text((left, _GAP), heading, font=_font(_HEADING), fill="black", anchor="lt")
    for row, height in zip(shown, heights, strict=True):
        for left, picture in zip(lefts, row, strict=True):
            sheet.paste(picture, (left, top))
        top += height + _GAP
    return sheet


def _reduced(picture: Image.Image) -> Image.Image:
    picture = picture.convert("RGB")
    picture.thumbnail((_MOST_SIDE, _MOST_SIDE))
    return picture


def draw_curves_of_precision(scores: Scores, path: Path) -> None:
    """Write a PNG of precision over recall, for boxes and for masks: at IoU 0.5 and 0.75, and the mean of all IoUs."""
    from matplotlib.figure import Figure  # here, because it takes ten times as long as the rest, and overlays need none

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
        for name, iou, words, colour in lines:
            curve, average = scores.curve(kind, iou), summary[kind][name]
            if curve is not None and average is not None:
                axis.plot(RECALLS, curve, color=colour, label=f"{words}: {name} {100 * average:.1f}%", clip_on=False)
        if axis.lines:
            axis.legend(loc="upper right")
        else:
            axis.text(0.5, 0.5, "no objects", ha="center", va="center", color="#64748b")
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)
