"""Files that users may upload: damaged, too large, or of unusual kinds."""

import io

import numpy as np
from PIL import Image

NOISE = np.random.default_rng(0)


def encode(image, image_format="PNG", **options):
    content = io.BytesIO()
    image.save(content, image_format, **options)
    return content.getvalue()


def rgb(side=12):
    return Image.fromarray(NOISE.integers(0, 256, (side, side, 3), np.uint8))


def unreadable_files():
    """File name, content and a part of the sentence about it."""
    return [
        ("text.png", b"this is not an image", "it is not an image of a known format"),
        ("empty.png", b"", "the file is empty"),
        ("truncated.png", encode(rgb(64))[:2000], "truncated"),
        ("bomb.png", encode(Image.new("L", (3000, 3000))), "3000 x 3000 pixels, more than 5,000,000"),
        ("nan.tif", encode(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF"), "floats must be in 0..1"),
        ("drawing.eps", encode(rgb(), "EPS"), "it is not an image of a known format"),
        ("page.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is not an image of a known format"),
    ]
