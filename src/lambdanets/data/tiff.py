"""Reads TIFF files that Pillow cannot: more than 8 bits, several channels or planes, other compressions."""

import logging
import math
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from PIL.ExifTags import Base
from PIL.TiffImagePlugin import COMPRESSION_INFO

from lambdanets.data.pixels import check_channel, composite_on_white, invert, select_channel

MAX_BYTES = 2**31  # of the planes that are decoded
HEADERS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NUM_COLORS = {"RGB": 3, "YCBCR": 3, "CIELAB": 3, "SEPARATED": 4}  # by PhotometricInterpretation; others have 1
_ASSOCIATED_ALPHA, _ALPHA = 1, 2  # ExtraSamples; the colors are multiplied by the former

# it logs errors for damaged metadata, although it can read the pixels
logging.getLogger("tifffile").setLevel(logging.CRITICAL)


def read_tiff(
    file: BinaryIO, channel: int | None, check_size: Callable[[int, int], None]
) -> tuple[np.ndarray, int] | None:
    """Return pixels (H, W) or (H, W, 3) and the orientation; None for one image of 8 bits that Pillow reads.

    channel: index of the channel or plane, in the order of the file; needed if there are several, except colors.
    check_size: is called with width and height before the pixels are decoded.

    Raises ValueError if a channel must be chosen, and for pixels that cannot be read; tifffile raises other exceptions.
    """
    from tifffile import TiffFile

    with TiffFile(file) as tiff:
        series = tiff.series[0]
        page, shape, axes = series.keyframe, series.shape, series.axes
        if series.dtype is None or "Y" not in axes or "X" not in axes or min(shape) < 1:
            raise ValueError(f"its axes are {axes} of sizes {shape}, not those of an image")
        check_size(shape[axes.index("X")], shape[axes.index("Y")])
        num_planes = math.prod(side for side, axis in zip(shape, axes, strict=True) if axis not in "YX")
        colors, extra = _NUM_COLORS.get(page.photometric.name, 1), page.extrasamples[:1]
        has_alpha = extra in ((_ASSOCIATED_ALPHA,), (_ALPHA,)) or (colors == 3 and not extra)
        is_image = num_planes == page.samplesperpixel and (
            num_planes == colors or (num_planes == colors + 1 and (colors > 1 or has_alpha))
        )
        if is_image and series.dtype in (np.uint8, bool) and page.compression in COMPRESSION_INFO:
            return None
        if is_image and channel is None and page.photometric.name not in ("RGB", "MINISBLACK", "MINISWHITE"):
            raise ValueError(f"its {page.photometric.name} colors cannot be read; convert it to RGB")
        if not is_image:
            if channel is None:
                sizes = " x ".join(map(str, shape))
                raise ValueError(
                    f"it has {num_planes} channels or planes (axes {axes}: {sizes}); save each as a file, or, for "
                    "predictions and explanations, choose one with --channel, in Python with channel="
                )
            check_channel(channel, num_planes)
        one_per_page = len(series.pages) == num_planes and page.shape == tuple(shape[axes.index(a)] for a in "YX")
        num_bytes = series.nbytes // num_planes if one_per_page else series.nbytes
        if num_bytes > MAX_BYTES:
            raise ValueError(f"it has {num_bytes / 2**30:.1f} GiB, more than {MAX_BYTES / 2**30:.0f} GiB")
        if one_per_page and not is_image:
            pixels, channel = series.pages[channel].asarray(), None
        else:
            pixels = np.moveaxis(series.asarray(), (axes.index("Y"), axes.index("X")), (0, 1))
            pixels = pixels.reshape(*pixels.shape[:2], num_planes)
        if page.photometric.name == "MINISWHITE":
            pixels = invert(pixels, page.bitspersample)
        if is_image and has_alpha and num_planes > colors:
            pixels = composite_on_white(pixels, extra == (_ASSOCIATED_ALPHA,))
        elif is_image:
            pixels = pixels[..., 0] if colors == 1 else pixels[..., :colors]
        return select_channel(pixels, channel), int(page.tags.valueof(Base.Orientation, 1))
