"""Colors of figures: distinct ones for objects and classes, and images that are bright enough to be seen."""

import colorsys

import numpy as np
from PIL import Image

Color = tuple[int, int, int]


def distinct_color(index: int) -> Color:
    """Return a color that has a different hue than those of nearby indices."""
    hue = index * 0.618034 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.55)[index // 8 % 2], 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def brighten(image: Image.Image) -> Image.Image:
    """Return an image of mode "L" or "RGB" for a figure: a dim one is scaled so that 99.9% of its values are in 0..255.

    An image is dim if 99.9% of its values are below 128. Microscopes often use a small part of the range.
    """
    high = np.percentile(np.asarray(image), 99.9)
    return image if high >= 128 else image.point(lambda value: min(255, round(value * 255 / max(high, 1))))
