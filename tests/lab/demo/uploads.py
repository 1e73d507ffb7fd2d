"""Files that users may upload: damaged, too large, or of unusual kinds."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

NOISE = np.random.default_rng(0)


def encode(image, image_format="PNG", **options):
    content = io.BytesIO()
    image.save(content, image_format, **options)
    return content.getvalue()


def gray(side=12):
    return Image.fromarray(NOISE.integers(0, 256, (side, side), np.uint8))


def rgb(side=12):
    return Image.fromarray(NOISE.integers(0, 256, (side, side, 3), np.uint8))


def png_of_size(width, height):
    """A gray PNG file of black pixels: about 1 KB per megapixel."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 1) * height), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def unreadable_files():
    """File name, content and a part of the sentence about it."""
    return [
        ("text.png", b"this is not an image", "it is not an image of a known format"),
        ("empty.png", b"", "the file is empty"),
        ("truncated.png", encode(rgb(64))[:2000], "truncated"),
        ("bomb.png", png_of_size(3000, 3000), "3000 x 3000 pixels, more than 5,000,000"),
        ("nan.tif", encode(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF"), "floats must be in 0..1"),
        ("drawing.eps", encode(rgb(), "EPS"), "it is not an image of a known format"),
        ("page.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is not an image of a known format"),
    ]


def readable_files():
    """File name and content of unusual images that are read."""
    palette = Image.fromarray(NOISE.integers(0, 4, (12, 12), np.uint8)).convert("P")
    palette.info["transparency"] = 0
    frames = [rgb() for _ in range(3)]
    return [
        ("cmyk.jpg", encode(rgb().convert("CMYK"), "JPEG")),
        ("pixel.png", encode(gray(1))),
        ("animated.gif", encode(frames[0], "GIF", save_all=True, append_images=frames[1:])),
        ("deep.png", encode(Image.fromarray(NOISE.integers(0, 65536, (12, 12)).astype(np.uint16)))),
        ("palette.png", encode(palette, transparency=0)),
        ("strip.png", encode(Image.fromarray(NOISE.integers(0, 256, (3, 1500), np.uint8)))),
        ("<b>&name.png", encode(gray())),
    ]
