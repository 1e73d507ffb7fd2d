"""COCO's segmentations, converted to run-length encodings (RLE) in column order, compressed to a string.

faster-coco-eval encodes and decodes them. It does not check that runs cover the image, and traces polygons far outside
of it pixel by pixel.
"""

import contextlib
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

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
        with contextlib.suppress(TypeError, OverflowError, IndexError):  # to_rle refuses a list
            several = polygons if isinstance(polygons[0], list) else [polygons]  # VIA writes one without a list
            entry["segmentation"] = tuple(array("d", polygon) for polygon in several)
    return entry


def to_rle(segmentation: Any, height: int, width: int) -> str:
    """Convert the segmentation of an annotation, in which `pack_polygons` has converted the polygons.

    height, width: of the image. Polygons with fewer than 3 points are left out. Raises AnnotationError.
    """
    if not segmentation:
        raise AnnotationError(NO_MASK)
    if isinstance(segmentation, dict):
        return _check_rle(segmentation, height, width)
    polygons = [each for each in segmentation if len(each) >= 6] if isinstance(segmentation, tuple) else []
    sides = np.concatenate([*polygons, []]) / max(height, width)
    # the comparison is false for NaN
    if not polygons or not -1 <= sides.min() <= sides.max() <= 2 or any(len(each) % 2 for each in polygons):
        raise AnnotationError(_DAMAGED_POLYGON)
    masks = masks_api()
    return masks.merge(masks.frPyObjects([polygon.tolist() for polygon in polygons], height, width))["counts"].decode()


def _check_rle(segmentation: dict[str, Any], height: int, width: int) -> str:
    counts = segmentation.get("counts")
    try:
        rle = counts if isinstance(counts, str) else compress(np.array(counts, np.int64), height, width)
        covered = _run_lengths(rle, height, width).sum()
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise AnnotationError(_DAMAGED_RLE) from None
    if segmentation.get("size") != [height, width] or covered != height * width:
        raise AnnotationError(_DAMAGED_RLE)
    return rle


def compress(runs: np.ndarray, height: int, width: int) -> str:
    """Compress the lengths of the runs of zeros and ones."""
    size = [height, width]
    return masks_api().frPyObjects({"size": size, "counts": runs.tolist()}, height, width)["counts"].decode()


def encode_rle(mask: np.ndarray, size: Sequence[int], top: int = 0, left: int = 0) -> str:
    """Encode a mask, bool (h, w), at a position in an image of a size, in time and memory proportional to h w."""
    height, width = size
    columns, rows = np.nonzero(mask.T)
    pixels = (columns + left) * height + rows + top
    starts = np.flatnonzero(np.diff(pixels, prepend=-2) != 1)  # of runs of pixels
    ends = np.append(starts[1:], len(pixels))
    bounds = np.stack([pixels[starts], pixels[starts] + ends - starts], axis=1).flatten()
    runs = np.diff(bounds, prepend=0, append=height * width)
    return compress(runs[:-1] if runs[-1] == 0 else runs, height, width)  # as pycocotools does


def box_and_area(rle: str, height: int, width: int) -> tuple[tuple[float, float, float, float], float]:
    """Return the box x1, y1, x2, y2 and the number of pixels of a mask."""
    encoded = {"size": [height, width], "counts": rle}
    left, top, box_width, box_height = masks_api().toBbox(encoded).tolist()
    return (left, top, left + box_width, top + box_height), float(masks_api().area(encoded))


def _run_lengths(rle: str, height: int, width: int) -> np.ndarray:
    """Return the lengths of the runs of zeros and ones, int64. Raises RuntimeError or ValueError if it is damaged."""
    from faster_coco_eval.mask_api_new_cpp import toUncompressedRLE

    return np.array(toUncompressedRLE([{"size": [height, width], "counts": rle}])[0]["counts"], np.int64)


def to_cropped_mask(rle: str, height: int, width: int) -> CroppedMask:
    """Decode a mask, cropped to its bounding box, in time and memory proportional to its pixels."""
    runs = _run_lengths(rle, height, width)
    starts, lengths = np.cumsum(runs)[:-1:2], runs[1::2]  # of the runs of ones
    if not lengths.sum():
        return CroppedMask(0, 0, np.zeros((0, 0), bool))
    pixels = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    columns, rows = np.divmod(pixels, height)
    top, left = int(rows.min()), int(columns.min())
    mask = np.zeros((rows.max() - top + 1, columns.max() - left + 1), bool)
    mask[rows - top, columns - left] = True
    return CroppedMask(top, left, mask)


def masks_api() -> ModuleType:
    """Import COCO's functions of masks, which predictions in Python do not need."""
    from faster_coco_eval import mask

    return mask
