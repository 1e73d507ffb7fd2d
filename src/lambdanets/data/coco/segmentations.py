"""COCO segmentations: polygons, or run-length encodings (RLE) in column order, uncompressed or compressed to a string.

faster-coco-eval decodes them. It does not check that runs cover the image, and traces polygons far outside of it pixel
by pixel.
"""

import contextlib
import functools
from array import array
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lambdanets.errors import explain_missing_extras

# Polygons (each x, y, x, y, ...); run lengths, int64; or a compressed RLE.
Segmentation: TypeAlias = "tuple[array[float], ...] | np.ndarray | str"

NO_MASK = "annotations dropped: no segmentation, or one without pixels"
_DAMAGED_POLYGON = (
    "annotations dropped: polygons with fewer than 3 points, an odd number of coordinates, values that are not "
    "numbers, or points far outside the image"
)
_DAMAGED_RLE = "annotations dropped: an RLE that is damaged or not of the image's size"


class AnnotationError(Exception):
    """An annotation is invalid. Its argument is a problem of `AnnotationProblems`."""


class CroppedMask(NamedTuple):
    """A mask cropped to its bounding box. top, left: first row and column of the box. mask: bool."""

    top: int
    left: int
    mask: np.ndarray


def pack_polygons(entry: dict[str, Any]) -> dict[str, Any]:
    """Convert polygons to float64 arrays, which need a quarter of the memory of lists; for json's object_hook."""
    if isinstance(polygons := entry.get("segmentation"), list):
        with contextlib.suppress(TypeError, OverflowError):  # parse_segmentation rejects a list
            entry["segmentation"] = tuple(array("d", polygon) for polygon in polygons)
    return entry


def parse_segmentation(value: Any, height: int, width: int) -> Segmentation:
    """Validate the segmentation of an annotation, in which `pack_polygons` has converted the polygons.

    height, width: of the image. Polygons with fewer than 3 points are removed. Raises AnnotationError.
    """
    if not value:
        raise AnnotationError(NO_MASK)
    if isinstance(value, dict):
        return _parse_rle(value, height, width)
    longer_side = max(height, width)
    polygons = tuple(polygon for polygon in value if len(polygon) >= 6) if isinstance(value, tuple) else ()
    for polygon in polygons:
        coordinates = np.frombuffer(polygon)
        in_range = -longer_side <= coordinates.min() <= coordinates.max() <= 2 * longer_side  # false for NaN
        if not in_range or len(coordinates) % 2:
            raise AnnotationError(_DAMAGED_POLYGON)
    if not polygons:
        raise AnnotationError(_DAMAGED_POLYGON)
    return polygons


def _parse_rle(value: dict[str, Any], height: int, width: int) -> np.ndarray | str:
    counts = value.get("counts")
    try:
        segmentation = counts if isinstance(counts, str) else np.array(counts, np.int64)
        covered = run_lengths(segmentation, height, width).sum()
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise AnnotationError(_DAMAGED_RLE) from None
    if value.get("size") != [height, width] or covered != height * width:
        raise AnnotationError(_DAMAGED_RLE)
    return segmentation


def segmentation_to_coco(segmentation: Segmentation, height: int, width: int) -> list[list[float]] | dict[str, Any]:
    """Convert a segmentation to the format of COCO files: a list of polygons, or a dict with size and counts."""
    if isinstance(segmentation, tuple):
        return [polygon.tolist() for polygon in segmentation]
    counts = segmentation if isinstance(segmentation, str) else segmentation.tolist()
    return {"size": [height, width], "counts": counts}


def compress(segmentation: Segmentation, height: int, width: int) -> dict[str, Any]:
    """Convert a segmentation to a compressed RLE, a dict with size and counts."""
    if isinstance(segmentation, str):
        return {"size": [height, width], "counts": segmentation}
    masks = masks_api()
    encoded = masks.frPyObjects(segmentation_to_coco(segmentation, height, width), height, width)
    if isinstance(encoded, dict):
        return encoded
    return encoded[0] if len(encoded) == 1 else masks.merge(encoded)


def run_lengths(segmentation: Segmentation, height: int, width: int) -> np.ndarray:
    """Return the lengths of the runs of zeros and ones, int64. Raises RuntimeError or ValueError if it is damaged."""
    masks_api()  # explains missing extras
    from faster_coco_eval.mask_api_new_cpp import toUncompressedRLE

    return np.array(toUncompressedRLE([compress(segmentation, height, width)])[0]["counts"], np.int64)


def to_cropped_mask(segmentation: Segmentation, height: int, width: int) -> CroppedMask:
    """Decode a segmentation to a mask that is cropped to its bounding box, without decoding the rest of the image."""
    ends = np.cumsum(run_lengths(segmentation, height, width))
    starts, ends = ends[:-1:2], ends[1::2]  # of each run of ones
    if not len(starts):
        return CroppedMask(0, 0, np.zeros((0, 0), bool))
    left, right = int(starts[0]) // height, (int(ends[-1]) - 1) // height + 1
    edges = np.zeros((right - left) * height + 1, np.int8)
    edges[starts - left * height] += 1
    edges[ends - left * height] -= 1
    columns = np.cumsum(edges[:-1], dtype=np.int8).astype(bool).reshape(right - left, height)
    rows = np.flatnonzero(columns.any(0))
    return CroppedMask(int(rows[0]), left, columns[:, rows[0] : rows[-1] + 1].T)


def encode_rle(mask: np.ndarray) -> str:
    """Encode a mask, bool (height, width), as a compressed RLE."""
    return masks_api().encode(np.asfortranarray(mask, np.uint8))["counts"].decode()


@functools.cache
def masks_api() -> ModuleType:
    """Import COCO's functions of masks."""
    with explain_missing_extras():
        from faster_coco_eval import mask
    return mask
