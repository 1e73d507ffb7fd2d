"""COCO segmentations: polygons, or run-length encodings (RLE) in column order, uncompressed or compressed to a string.

They are validated, because the C code of faster-coco-eval does not check them: it would write outside of the mask if
runs are longer than the image, read past the end of a truncated string, and trace polygons far outside the image pixel
by pixel.
"""

from array import array
from contextlib import suppress
from operator import mul
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lambdanets.data.coco.problems import AnnotationError
from lambdanets.errors import explain_missing_extras

# polygons (each x, y, x, y, ...), an uncompressed RLE, or a compressed RLE
Segmentation: TypeAlias = "tuple[array[float], ...] | array[int] | str"


class CroppedMask(NamedTuple):
    """A mask cropped to its bounding box. top, left: first row and column of the box. mask: bool."""

    top: int
    left: int
    mask: np.ndarray


MAX_PIXELS = 2 * 10**8  # more than Pillow's limit; the C code counts pixels in 32 bits
_MAX_OUTLINE = 4 * 10**6  # pixels; the C code needs 200 bytes per pixel of the outline


def pack_polygons(entry: dict[str, Any]) -> dict[str, Any]:
    """Convert polygons to float64 arrays, which need a quarter of the memory of lists; for json's object_hook.

    One polygon or one RLE that is not, or too deeply, nested in a list, and polygons as lists of points, are accepted.
    """
    polygons = entry.get("segmentation")
    if type(polygons) is list:
        with suppress(TypeError, ValueError, OverflowError):  # parse_segmentation rejects polygons that are still lists
            entry["segmentation"] = _pack(polygons)
    return entry


def _pack(polygons: list[Any]) -> "tuple[array[float], ...] | dict[str, Any]":
    first = polygons[0] if polygons else []
    if isinstance(first, dict) and len(polygons) == 1:
        return first
    if type(first) is not list or (len(polygons) > 2 and all(len(point) == 2 for point in polygons)):
        polygons = [polygons]
    return tuple([array("d", _flatten(polygon)) for polygon in polygons])


def _flatten(polygon: list[Any]) -> list[Any]:
    if polygon and type(polygon[0]) is list:
        return [coordinate for x, y in polygon for coordinate in (x, y)]
    return polygon


def parse_segmentation(value: Any, height: int, width: int) -> Segmentation:
    """Validate the segmentation of an annotation, in which `pack_polygons` has converted the polygons.

    height, width: of the image, which must have fewer than MAX_PIXELS pixels.

    Polygons with fewer than 3 points and runs of length 0 are removed. Raises AnnotationError if the segmentation is
    damaged or empty.
    """
    if not value:
        raise AnnotationError("no_mask")
    if isinstance(value, dict):
        return _parse_rle(value, height, width)
    if not isinstance(value, tuple):
        raise AnnotationError("damaged_polygon")
    longer_side = max(height, width)
    value = tuple(polygon for polygon in value if len(polygon) >= 6)
    if not value:
        raise AnnotationError("damaged_polygon")
    for polygon in value:
        if len(polygon) % 2 or not (-longer_side <= min(polygon) <= max(polygon) <= 2 * longer_side):
            raise AnnotationError("damaged_polygon")
    if sum(map(len, value)) * 3 * longer_side > 2 * _MAX_OUTLINE and sum(map(_outline_pixels, value)) > _MAX_OUTLINE:
        raise AnnotationError("damaged_polygon")
    return value


def _outline_pixels(polygon: "array[float]") -> float:
    points = np.asarray(polygon).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum())


def _parse_rle(value: dict[str, Any], height: int, width: int) -> "array[int] | str":
    counts = value.get("counts")
    if value.get("size") != [height, width] or not isinstance(counts, list | str):
        raise AnnotationError("damaged_rle")
    try:
        rle = counts if isinstance(counts, str) else array("q", counts)
        lengths = _decode_rle(rle) if isinstance(rle, str) else np.asarray(rle)
    except (TypeError, ValueError, OverflowError):
        raise AnnotationError("damaged_rle") from None
    pixels = height * width
    in_range = len(lengths) > 0 and (lengths >= 0).all() and (lengths <= pixels).all()
    if not in_range or lengths.sum() != pixels:
        raise AnnotationError("damaged_rle")
    if not lengths[1::2].any():
        raise AnnotationError("no_mask")
    return rle if lengths[1:].all() else _remove_empty_runs(lengths)


def _remove_empty_runs(lengths: np.ndarray) -> "array[int]":
    """Remove runs of length 0, because the C code stops at them when it compares masks."""
    nonempty = np.flatnonzero(lengths)
    inside = nonempty % 2
    starts = np.flatnonzero(np.diff(inside, prepend=1 - inside[0]))
    return array("q", [0] * int(inside[0]) + np.add.reduceat(lengths[nonempty], starts).tolist())


def _decode_rle(string: str) -> np.ndarray:
    """Decode the run lengths of a compressed RLE, int64. Raises ValueError for an invalid string.

    Each character has 5 bits of a number, lowest bits first, and a continuation bit. The highest bit of a number is its
    sign. From the fourth number on, each is the difference to the second number before it.
    """
    codes = np.frombuffer(string.encode("ascii"), np.uint8).astype(np.int64) - ord("0")
    if not len(codes) or codes.min() < 0 or codes.max() > 63 or codes[-1] & 32:
        raise ValueError
    ends = np.flatnonzero(codes & 32 == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    positions = np.arange(len(codes)) - np.repeat(starts, ends - starts + 1)
    if positions.max() > 6:  # 35 bits
        raise ValueError
    numbers = np.add.reduceat((codes & 31) << 5 * positions, starts)
    numbers -= np.where(codes[ends] & 16, 32 << 5 * positions[ends], 0)
    for first in (1, 2):
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers


def segmentation_to_coco(segmentation: Segmentation, height: int, width: int) -> list[list[float]] | dict[str, Any]:
    """Convert a segmentation to the format of COCO files: a list of polygons, or a dict with size and counts."""
    if isinstance(segmentation, tuple):
        return [polygon.tolist() for polygon in segmentation]
    counts = segmentation if isinstance(segmentation, str) else segmentation.tolist()
    return {"size": [height, width], "counts": counts}


def to_mask(segmentation: Segmentation, height: int, width: int) -> np.ndarray:
    """Decode a segmentation to a mask, uint8 (height, width), 1 inside; all 0 if polygons contain no pixel center."""
    return np.ascontiguousarray(_masks().decode(_to_rle(segmentation, height, width)))


def mask_box(segmentation: Segmentation, height: int, width: int) -> tuple[float, float, float, float] | None:
    """Return the bounding box x1, y1, x2, y2 of a segmentation inside the image; None if the mask has no pixels.

    The box of polygons is that of their points.
    """
    if isinstance(segmentation, tuple):
        # a mask is only decoded if the polygons are so thin that they may lie between pixel centers
        if all(map(_is_thin, segmentation)) and not mask_area(segmentation, height, width):
            return None
        xs, ys = ([limit(polygon[axis::2]) for polygon in segmentation for limit in (min, max)] for axis in (0, 1))
        box = (max(min(xs), 0.0), max(min(ys), 0.0), min(max(xs), float(width)), min(max(ys), float(height)))
        return box if box[0] < box[2] and box[1] < box[3] else None
    lengths = _decode_rle(segmentation) if isinstance(segmentation, str) else np.asarray(segmentation)
    starts, ends = _runs(lengths)
    left, right = starts[0] // height, (ends[-1] - 1) // height + 1
    if (starts // height != (ends - 1) // height).any():  # a run continues in the next column
        return float(left), 0.0, float(right), float(height)
    return float(left), float((starts % height).min()), float(right), float(((ends - 1) % height).max() + 1)


def _is_thin(polygon: "array[float]") -> bool:
    """Whether the mean width of a polygon is below 2 pixels."""
    x, y = polygon[::2], polygon[1::2]
    area = abs(sum(map(mul, x, y[1:] + y[:1])) - sum(map(mul, y, x[1:] + x[:1]))) / 2
    return area < 2 * max(max(x) - min(x), max(y) - min(y))


def _runs(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last + 1 index of each run of ones, in column order."""
    ends = np.cumsum(lengths)
    return ends[:-1:2], ends[1::2]


def to_cropped_mask(segmentation: Segmentation, height: int, width: int) -> CroppedMask:
    """Decode a segmentation to a mask that is cropped to its bounding box, without decoding the rest of the image."""
    encoded = _to_rle(segmentation, height, width)["counts"]
    starts, ends = _runs(_decode_rle(encoded if isinstance(encoded, str) else encoded.decode()))
    if not len(starts):
        return CroppedMask(0, 0, np.zeros((0, 0), bool))
    left, right = int(starts[0]) // height, (int(ends[-1]) - 1) // height + 1
    edges = np.zeros((right - left) * height + 1, np.int8)
    edges[starts - left * height] += 1
    edges[ends - left * height] -= 1
    columns = np.cumsum(edges[:-1], dtype=np.int8).astype(bool).reshape(right - left, height)
    rows = np.flatnonzero(columns.any(0))
    return CroppedMask(int(rows[0]), left, columns[:, rows[0] : rows[-1] + 1].T)


def mask_area(segmentation: Segmentation, height: int, width: int) -> float:
    """Return the number of pixels of the mask."""
    return float(_masks().area(_to_rle(segmentation, height, width)))


def encode_rle(mask: np.ndarray) -> str:
    """Encode a mask, bool (height, width), as a compressed RLE."""
    return _masks().encode(np.asfortranarray(mask, np.uint8))["counts"].decode()


def _to_rle(segmentation: Segmentation, height: int, width: int) -> dict[str, Any]:
    masks = _masks()
    if isinstance(segmentation, tuple):
        return masks.merge(masks.frPyObjects([polygon.tolist() for polygon in segmentation], height, width))
    runs: Any = segmentation_to_coco(segmentation, height, width)
    return runs if isinstance(segmentation, str) else masks.frPyObjects(runs, height, width)


def _masks() -> ModuleType:
    with explain_missing_extras():
        from faster_coco_eval import mask
    return mask
