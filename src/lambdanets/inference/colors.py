"""Distinct colors for objects and classes."""

import colorsys

Color = tuple[int, int, int]


def distinct_color(index: int) -> Color:
    """Return a color that has a different hue than those of nearby indices."""
    hue = index * 0.618034 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.55)[index // 8 % 2], 1)
    return round(255 * red), round(255 * green), round(255 * blue)
