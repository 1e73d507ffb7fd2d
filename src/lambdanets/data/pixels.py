"""Converts pixels of any mode and number of bits to 8-bit gray or RGB."""

import math
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFile
from PIL.ExifTags import Base

_CUT = ";16B"  # end of Pillow's raw modes of PNG files of which it keeps only the high byte of each sample
_WHITE_IS_ZERO = 0  # TIFF's PhotometricInterpretation
_CHUNK_ROWS = 32
_MAX_SAMPLE = 1_000_000  # pixels whose intensities are sorted by `stretch`
# Where `stretch` puts the medians of background and objects if the background is dark, and the background if it is
# bright: the medians over the training images of the packaged model `nuclei`.
DARK_BACKGROUND, BRIGHT_OBJECTS, BRIGHT_BACKGROUND = 8.0, 70.0, 185.0
# The background is dark if the median is below this fraction of the intensities. In these images, it is below 0.09 if
# the background is dark, and above 0.43 if it is bright.
_MAX_DARK_MEDIAN = 0.3


def convert_image(image: Image.Image, channel: int | None = None, stretch: bool = False) -> Image.Image:
    """Convert a Pillow image of any mode to "L" (if it is gray, or a channel is chosen) or "RGB", with 8 bits.

    channel: index of the channel to use, without transparency. stretch: as in `to_8_bits`.

    Transparent pixels are composited on white. Raises ValueError for an image that is transparent everywhere, for a
    channel that it does not have, and as `to_8_bits`.
    """
    pixels = _deep_pixels(image)
    if pixels is None:
        is_gray = Image.getmodebase(image.mode) == "L"
        if image.has_transparency_data:
            rgba = np.asarray(image.convert("RGBA"))
            return convert_pixels(rgba[..., ::3] if is_gray else rgba, channel, stretch)
        image = image.convert("L" if is_gray else "RGB")  # a copy also of an image of this mode
        if channel is None and not stretch:
            return image
        pixels = np.asarray(image)
    return convert_pixels(pixels, channel, stretch)


def convert_pixels(pixels: np.ndarray, channel: int | None = None, stretch: bool = False) -> Image.Image:
    """Convert pixels (H, W) or (H, W, C) as `convert_image` does. C: 1 for gray, 3 for RGB, or one more for alpha.

    Raises ValueError as `convert_image`, and for integers that no files have: they may be 8-bit values.
    """
    pixels = np.asarray(pixels)  # of a masked array, all values
    kind, num_bytes = pixels.dtype.kind, pixels.dtype.itemsize
    if kind not in "buif" or pixels.dtype == np.int8 or (kind in "ui" and num_bytes > (4 if pixels.ndim == 2 else 2)):
        raise ValueError(f"its dtype must be uint8, uint16 or floating point, got {pixels.dtype}")
    pixels = pixels.squeeze(2) if pixels.shape[2:] == (1,) else pixels
    pixels = composite_on_white(pixels) if pixels.shape[2:] in ((2,), (4,)) else pixels
    return Image.fromarray(to_8_bits(select_channel(pixels, channel), stretch))


def _deep_pixels(image: Image.Image) -> np.ndarray | None:
    """Return the pixels, as for `convert_pixels`, of an image with more than 8 bits; None for others."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image)
        tags = getattr(image, "tag_v2", {})
        return invert(values) if tags.get(Base.PhotometricInterpretation) == _WHITE_IS_ZERO else values
    if max(getattr(image, "tag_v2", {}).get(Base.BitsPerSample, (8,))) > 8:
        raise ValueError("Pillow keeps only 8 bits of its colors; pass the path of the file instead")
    if not isinstance(image, ImageFile.ImageFile) or image.format != "PNG" or image.fp is None or not image.tile:
        return None  # without tiles, the pixels are loaded
    if not str(image.tile[0].args).endswith(_CUT):
        return None
    import imagecodecs

    image.fp.seek(0)
    return imagecodecs.png_decode(image.fp.read())


def composite_on_white(pixels: np.ndarray, premultiplied: bool = False) -> np.ndarray:
    """Composite pixels (H, W, 2 or 4), whose last channel is alpha, on white; return (H, W) or (H, W, 3).

    premultiplied: whether the colors are already multiplied by alpha. Raises ValueError if alpha is 0 everywhere.
    """
    white = _white(pixels.dtype)
    colors, alpha = pixels[..., :-1], pixels[..., -1:]
    if alpha.max() == 0:
        raise ValueError("its alpha is 0 everywhere, so no pixel is visible; remove its alpha channel")
    if alpha.min() < white:
        colors = colors.copy()
        for rows in _chunks(colors):
            opacity = alpha[rows].astype(np.float64) / white
            values = (colors[rows] if premultiplied else colors[rows] * opacity) + white * (1 - opacity)
            colors[rows] = values if pixels.dtype.kind == "f" else np.rint(values)
    return colors[..., 0] if colors.shape[2] == 1 else colors


def _chunks(pixels: np.ndarray) -> Iterator[slice]:
    """Yield the rows that are converted at a time: few, since float64 needs memory, and is faster in the cache."""
    return (slice(first, first + _CHUNK_ROWS) for first in range(0, len(pixels), _CHUNK_ROWS))


def invert(values: np.ndarray, bits: int | None = None) -> np.ndarray:
    """Return the intensities of an image in which 0 is white. bits: of an integer, by default those of its dtype."""
    if values.dtype.kind == "u":
        return (_white(values.dtype) if bits is None else 2**bits - 1) - values
    return 1 - values if values.dtype.kind == "f" else ~values


def _white(dtype: np.dtype) -> int:
    return 1 if dtype.kind == "f" else int(np.iinfo(dtype).max)


def select_channel(pixels: np.ndarray, channel: int | None) -> np.ndarray:
    """Return a channel (H, W) of pixels (H, W) or (H, W, C); all of them for None. Raises ValueError."""
    if channel is None:
        return pixels
    channels = np.atleast_3d(pixels)
    check_channel(channel, channels.shape[2])
    return channels[..., channel]


def check_channel(channel: int, count: int) -> None:
    """Raise ValueError if an image of `count` channels or planes does not have this one."""
    if not 0 <= channel < count:
        raise ValueError(f"channel must be below {count}, its number of channels or planes, got {channel}")


def to_8_bits(pixels: np.ndarray, stretch: bool = False) -> np.ndarray:
    """Convert intensities (H, W) or (H, W, 3) of any number of bits to uint8, with the same scale for all channels.

    stretch: find the background and the objects, and map their intensities to those of 8-bit training images, so that
        the result depends neither on the number of bits nor on the gain; nor, if the background is dark, on an offset.
        Otherwise all of the range is mapped: integers must be in [0, 65535], and floats in [0, 1], as in torchvision
        and scikit-image.

    Raises ValueError for other values, and for NaN and infinity.
    """
    if not stretch and pixels.dtype in (np.uint8, bool):
        return pixels if pixels.dtype == np.uint8 else pixels.astype(np.uint8) * 255
    low, scale, target = _stretching(pixels) if stretch else (0.0, 255 / _range(pixels), 0.0)
    converted = np.empty(pixels.shape, np.uint8)
    for rows in _chunks(pixels):
        converted[rows] = np.rint((pixels[rows].astype(np.float64) - low) * scale + target).clip(0, 255)
    return converted


def _range(pixels: np.ndarray) -> float:
    """Return the intensity that becomes white without stretching. Raises ValueError if some are outside the range."""
    low, high = pixels.min().item(), pixels.max().item()
    name, limit, advice = "integers", 65535, "convert the images of the set to 8 or 16 bits"
    if pixels.dtype.kind == "f":
        name, limit, advice = "floats", 1, "divide the images of the set by one number, such as 255 for 8 bits"
    if not 0 <= low <= high <= limit:  # true also for NaN
        raise ValueError(f"its {name} must be in 0..{limit}, got {low:g} to {high:g}; {advice}")
    return float(limit)


def _stretching(pixels: np.ndarray) -> tuple[float, float, float]:
    """Return (low, scale, target) of `to_8_bits`: low becomes target.

    Pixels are divided into dark and bright ones by Otsu's threshold, which maximizes the variance between both, without
    the darkest and brightest thousandth. It would divide the noise if objects are on less than 0.25%: if all
    but the brightest is noise, by its symmetry, only pixels far above it are bright.
    """
    if not np.isfinite([pixels.min(), pixels.max()]).all():
        raise ValueError("its intensities must be finite, got NaN or infinity")
    step = math.ceil(math.sqrt(math.prod(pixels.shape[:2]) / _MAX_SAMPLE))
    sample = pixels[::step, ::step].astype(np.float64)
    values = np.sort(sample.ravel() if sample.ndim == 2 else sample.mean(2).ravel())
    outliers, few = len(values) // 1000, len(values) // 400
    low, median, high = values[outliers], values[len(values) // 2], values[-1 - outliers]
    is_dark = median - low <= _MAX_DARK_MEDIAN * (high - low)
    brightest = values[-1 - max(len(values) // 10_000, min(20, few))]  # more than a few hot pixels
    below, above = median - values[few], values[-1 - few] - median
    if above <= 2 * below and brightest - median > 3 * (below + above):
        dark, bright, is_dark = median, np.median(values[values > (median + brightest) / 2]), True
    elif low == high:
        return low, 0.0, DARK_BACKGROUND
    else:
        values = values[outliers : len(values) - outliers]
        num_dark = np.arange(1, len(values))
        sums = np.cumsum(values - low)
        mean_dark, mean_bright = sums[:-1] / num_dark, (sums[-1] - sums[:-1]) / num_dark[::-1]
        threshold = 1 + int(np.argmax(num_dark * num_dark[::-1] * (mean_bright - mean_dark) ** 2))
        dark, bright = values[threshold // 2], values[(threshold + len(values)) // 2]
    if not is_dark:
        dark, target, bright_target = 0.0, 0.0, BRIGHT_BACKGROUND
    else:
        target, bright_target = DARK_BACKGROUND, BRIGHT_OBJECTS
    if max(abs(dark - target), abs(bright - bright_target)) <= 1:  # it has been stretched
        return 0.0, 1.0, 0.0
    return dark, (bright_target - target) / (bright - dark), target
