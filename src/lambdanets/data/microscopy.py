"""Reads images of microscopes: TIFF files with several channels, and intensities with more than 8 bits."""

import contextlib
import io
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from lambdanets.data.images import UnreadableImage, read_file, read_image, to_gray_or_rgb
from lambdanets.errors import one_line

MAX_BYTES = 2**31  # of all channels of a file
PERCENTILES = (0.1, 99.9)
_TIFF = (".tif", ".tiff")


def read_microscopy_image(path: Path, channel: int | None = None, stretch: bool = False) -> Image.Image:
    """Read an image with 8 bits per channel: mode "L" if it has one channel or `channel` is given, else "RGB".

    channel: index of the channel, or of the plane of a stack. Files with 2 channels, with more than 3, or with several
        planes need one. RGB images need none.
    stretch: map the 0.1 and the 99.9 percentile of intensities with more than 8 bits to 0 and 255. Otherwise integers
        must be in [0, 65535] and floats in [0, 1], and all of the range is mapped to 8 bits, as in `read_image`.

    Raises UnreadableImage.
    """
    try:
        planes = _read_tiff(path) if path.suffix.lower() in _TIFF else None
        if planes is None:
            image = _read_high_depth(path) if stretch else None
            planes = np.asarray(read_image(path) if image is None else image)
            planes = planes[None] if planes.ndim == 2 else np.moveaxis(planes, 2, 0)
        if channel is None and len(planes) == 3 and planes.dtype == np.uint8:
            return Image.fromarray(np.ascontiguousarray(np.moveaxis(planes, 0, 2)))
        if channel is None and len(planes) > 1:
            raise ValueError(f"it has {len(planes)} channels or planes; choose one with --channel")
        if channel is not None and channel >= len(planes):
            raise ValueError(
                f"channel must be below {len(planes)}, the number of its channels or planes, got {channel}"
            )
        return _to_8_bits(planes[channel or 0], stretch)
    except UnreadableImage:
        raise
    except Exception as error:  # tifffile raises exceptions of many types for damaged files
        raise UnreadableImage(str(path), one_line(error)) from error


def _read_tiff(path: Path) -> np.ndarray | None:
    """Return the planes (n, H, W) of a TIFF file; None for an 8-bit image of one plane, which `read_image` reads."""
    from tifffile import TiffFile

    content = io.BytesIO(read_file(path))
    with _quiet("tifffile"), TiffFile(content) as file:
        series = file.series[0]
        shape, axes = series.shape, series.axes
        if series.dtype is None or min(shape, default=0) < 1:
            raise ValueError(f"it has the shape {shape}")
        samples = shape[axes.index("S")] if "S" in axes else 1
        planes = math.prod(side for side, axis in zip(shape, axes, strict=True) if axis not in "YXS")
        if planes == 1 and series.dtype == np.uint8:
            return None
        if series.nbytes > MAX_BYTES:
            raise ValueError(
                f"its channels need {series.nbytes / 2**30:.1f} GiB, more than {MAX_BYTES / 2**30:.0f} GiB"
            )
        order = [i for i, axis in enumerate(axes) if axis not in "YX"] + [axes.index("Y"), axes.index("X")]
        values = series.asarray().transpose(order)
        return values.reshape(planes * samples, *values.shape[-2:])


def _read_high_depth(path: Path) -> Image.Image | None:
    """Return a gray image with more than 8 bits; None for other images."""
    with Image.open(io.BytesIO(read_file(path))) as image:
        if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
            return None
        image.load()
        return image.copy()


def _to_8_bits(plane: np.ndarray, stretch: bool) -> Image.Image:
    if plane.dtype == bool:
        return Image.fromarray(plane.astype(np.uint8) * 255)
    if plane.dtype == np.uint8:
        return Image.fromarray(np.ascontiguousarray(plane))
    if not np.issubdtype(plane.dtype, np.number) or np.iscomplexobj(plane):
        raise ValueError(f"its intensities must be integers or floats, got {plane.dtype}")
    if not stretch:
        dtype = np.float32 if np.issubdtype(plane.dtype, np.floating) else np.int32
        return to_gray_or_rgb(Image.fromarray(np.ascontiguousarray(plane.astype(dtype))))
    low, high = np.percentile(plane, PERCENTILES).tolist()
    if not math.isfinite(high - low):
        raise ValueError("its intensities must be finite, got NaN or infinity")
    scaled = (plane.astype(np.float32) - low) * (255 / max(high - low, 1e-30))
    return Image.fromarray(np.rint(scaled.clip(0, 255)).astype(np.uint8))


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Silence a logger within the block: damaged metadata are no errors."""
    log = logging.getLogger(logger)
    previous, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = previous
