"""Figures of an explanation, drawn over the image: figures with titles and color bars, and single panels as images."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from lambdanets.inference.figures import brighten, save_figure
from lambdanets_lab.explain.attention import AttentionMap
from lambdanets_lab.explain.explanation import ReceptiveField
from lambdanets_lab.explain.view import View

COLORS = "cividis"  # lightness increases evenly, also for color-blind readers and in gray
SIGNED_COLORS = "RdBu_r"  # blue below 0 and red above, which color-blind readers distinguish; transparent at 0
PANEL = 2.6  # side of a panel in inches
COLUMNS = 4
DPI = 110
PANEL_PIXELS = 400
SHOWN_SIDE = 1000  # longer side in pixels of the image in a panel; Matplotlib takes 0.7 s for 5 million pixels
DECADES = 4  # range of the logarithmic color scale of gradients
MARK: dict[str, Any] = {"marker": "P", "markersize": 11, "color": "black", "markeredgecolor": "white"}


def attention_weights(attention: AttentionMap) -> tuple[np.ndarray, np.ndarray]:
    """Return content and position weights as maps (h, H, W). With intra-depth, weights are summed over u."""
    weights = (attention.content, attention.position)
    content, position = (x.sum(-1) if attention.has_intra_depth else x for x in weights)
    return content.cpu().numpy(), position.cpu().numpy()


def gradient_decades(field: ReceptiveField) -> np.ndarray:
    """Return the logarithm of the gradient relative to its maximum, from -DECADES to 0."""
    gradient = field.gradient.float().cpu().numpy()
    return np.log10(np.maximum(gradient / (gradient.max() or 1.0), 10.0**-DECADES))


def panel_image(
    values: np.ndarray,
    limits: tuple[float, float],
    view: View,
    image: Image.Image,
    *,
    colors: str = COLORS,
    at: tuple[int, int] | None = None,
    field: ReceptiveField | None = None,
) -> Image.Image:
    """Draw one panel without title and color bar, for pages that have text of their own.

    values: map (rows, columns). limits: values of the first and the last color. at: pixel (row, column) to mark.
    field: receptive field whose box to draw. The longer side of the result has PANEL_PIXELS pixels.
    """
    longest = max(image.size)
    height, width = (max(PANEL_PIXELS * side / longest, PANEL_PIXELS // 10) for side in (image.height, image.width))
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    _overlay(axis, image, view, values, *limits, colors)
    axis.set_aspect("auto")
    if field is not None:
        axis.add_patch(_field_box(field))
    if at is not None:
        axis.plot(at[1], at[0], **MARK)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def draw_attention(attention: AttentionMap, view: View, image: Image.Image, at: tuple[int, int], path: Path) -> None:
    """Draw content and position weights of each head, each with a color scale that is symmetric around 0.

    Content weights are often much smaller, and would be invisible in the scale of the others. at: the marked pixel
    (row, column).
    """
    maps = attention_weights(attention)
    heads = len(maps[0])
    figure, axes = _panels(2 * (heads + 1), heads + 1)
    for row, (term, weights) in enumerate(zip(("content", "position"), maps, strict=True)):
        limit = float(np.abs(weights).max()) or 1.0
        first, *panels = axes[row * (heads + 1) : (row + 1) * (heads + 1)]
        _show(first, image)
        first.plot(at[1], at[0], **MARK)
        for head, (axis, values) in enumerate(zip(panels, weights, strict=True)):
            drawn = _overlay(axis, image, view, values, -limit, limit, SIGNED_COLORS)
            axis.plot(at[1], at[0], **MARK)
            axis.set_title(f"{term}, head {head}")
        figure.colorbar(drawn, ax=[first, *panels], label=f"weight by {term}")
    figure.suptitle(f"{attention.layer}: weights for the marked pixel")
    save_figure(figure, path)


def draw_panels(
    maps: dict[str, np.ndarray], label: str, view: View, image: Image.Image, path: Path, title: str = ""
) -> None:
    """Draw maps with values in [0, 1], or [-1, 1], by the titles of their panels. label: of the color bar."""
    low = -1 if min(values.min() for values in maps.values()) < 0 else 0
    figure, axes = _panels(len(maps), min(COLUMNS, len(maps)))
    for axis, (name, values) in zip(axes, maps.items(), strict=True):
        drawn = _overlay(axis, image, view, values, low, 1)
        axis.set_title(name, fontsize=9)
    figure.colorbar(drawn, ax=axes, label=label)
    figure.suptitle(title)
    save_figure(figure, path)


def draw_receptive_field(field: ReceptiveField, image: Image.Image, at: tuple[int, int], path: Path) -> None:
    """Draw the gradient, logarithmic over four decades, and the theoretical receptive field as a box."""
    assert field.view is not None
    figure, (axis,) = _panels(1, 1, side=2 * PANEL)
    drawn = _overlay(axis, image, field.view, gradient_decades(field), -DECADES, 0)
    axis.plot(at[1], at[0], **MARK)
    axis.add_patch(_field_box(field))
    axis.set_title(f"{field.module}: 90% of the gradient in {field.area():.1%} of the input")
    figure.colorbar(drawn, ax=axis, label="log10 of the gradient / its maximum")
    save_figure(figure, path)


def _panels(count: int, columns: int, side: float = PANEL) -> tuple[Figure, list[Axes]]:
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(side * columns + 1, side * rows + 0.6), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    return figure, axes[:count]


def _show(axis: Axes, image: Image.Image) -> None:
    shown, extent = image.convert("L"), (-0.5, image.width - 0.5, image.height - 0.5, -0.5)
    shown.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    axis.imshow(np.asarray(brighten(shown)), cmap="gray", vmin=0, vmax=255, extent=extent)


def _field_box(field: ReceptiveField) -> Rectangle:
    view = field.view
    assert view is not None
    (top, bottom), (left, right) = field.box
    scales = [size / side for size, side in zip(view.size, field.gradient.shape, strict=True)]
    corner = (view.start[1] + left * scales[1] - 0.5, view.start[0] + top * scales[0] - 0.5)
    sides = ((right - left) * scales[1], (bottom - top) * scales[0])
    return Rectangle(corner, *sides, fill=False, edgecolor="#dc2626", linewidth=2)


def _overlay(
    axis: Axes, image: Image.Image, view: View, values: np.ndarray, low: float, high: float, colors: str = COLORS
) -> Any:
    """Draw values (rows, columns) over a gray image; return the artist for the color bar."""
    _show(axis, image)
    (top, left), (height, width) = view.start, view.size
    extent = (left - 0.5, left + width - 0.5, top + height - 0.5, top - 0.5)
    alpha: Any = 0.85
    if colors == SIGNED_COLORS:
        alpha = 0.85 * np.sqrt(np.abs(values) / high).clip(0, 1)
    drawn = axis.imshow(values, cmap=colors, vmin=low, vmax=high, alpha=alpha, extent=extent, interpolation="nearest")
    axis.set(xlim=(-0.5, image.width - 0.5), ylim=(image.height - 0.5, -0.5))
    return drawn
