"""Masks as COCO writes them: polygons, or the lengths of runs down the columns (RLE).

They are checked here before pycocotools gets them, whose C code trusts them: runs of another sum than the image's
pixels would be written beyond the mask, a string cut off within a number read beyond its end, polygons far outside the
image traced pixel by pixel.
"""

from array import array
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lambdanets.data.coco.findings import Dropped
from lambdanets.errors import InputError

# parts of a polygon as x, y, x, y, ...; or runs as numbers; or runs as COCO's string
Segmentation: TypeAlias = "tuple[array[float], ...] | array[int] | str"


class Patch(NamedTuple):
    """The rectangle of an image that an object's mask lies in: its first row and column, and the mask there, bool."""

    top: int
    left: int
    mask: np.ndarray


MOST_PIXELS = 2 * 10**8  # more than Pillow reads; the C code counts in 32 bits
_LONGEST_OUTLINE = 4 * 10**6  # pixels, of which 200 bytes are needed each while it is traced


def pack_polygons(entry: dict[str, Any]) -> dict[str, Any]:
    """An object of JSON, whose polygons become arrays of float64, a quarter of the lists' memory; for json's hook."""
    parts = entry.get("segmentation")
    if type(parts) is list:
        with suppress(TypeError, OverflowError):  # read_segmentation refuses what is left a list
            entry["segmentation"] = tuple([array("d", part) for part in parts])
    return entry


def read_segmentation(value: Any, height: int, width: int) -> Segmentation:
    """The segmentation of an annotation, its polygons packed, if it can be decoded; height times width < 2 * 10**8.

    Without parts of fewer than 3 points, where others are left, and without runs of length 0. Raises Dropped.
    """
    if not value:
        raise Dropped("no_mask")
    if isinstance(value, dict):
        return _read_runs(value, height, width)
    if not isinstance(value, tuple):
        raise Dropped("damaged_polygon")
    reach = max(height, width)
    value = tuple(part for part in value if len(part) >= 6)
    if not value:
        raise Dropped("damaged_polygon")
    for part in value:
        if len(part) % 2 or not (-reach <= min(part) <= max(part) <= 2 * reach):
            raise Dropped("damaged_polygon")
    if sum(map(len, value)) * 3 * reach > 2 * _LONGEST_OUTLINE and sum(map(_outline, value)) > _LONGEST_OUTLINE:
        raise Dropped("damaged_polygon")
    return value


def _outline(part: "array[float]") -> float:
    points = np.asarray(part).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum())


def _read_runs(value: dict[str, Any], height: int, width: int) -> "array[int] | str":
    counts = value.get("counts")
    if value.get("size") != [height, width] or not isinstance(counts, list | str):
        raise Dropped("damaged_rle")
    try:
        kept = counts if isinstance(counts, str) else array("q", counts)
        lengths = _lengths(kept) if isinstance(kept, str) else np.asarray(kept)
    except (TypeError, ValueError, OverflowError):
        raise Dropped("damaged_rle") from None
    pixels = height * width
    within = len(lengths) > 0 and (lengths >= 0).all() and (lengths <= pixels).all()
    if not within or lengths.sum() != pixels:
        raise Dropped("damaged_rle")
    if not lengths[1::2].any():
        raise Dropped("no_mask")
    return kept if lengths[1:].all() else _joined(lengths)


def _joined(lengths: np.ndarray) -> "array[int]":
    """The same runs without those of length 0, in which the C code that compares masks would stop."""
    there = np.flatnonzero(lengths)
    inside = there % 2
    starts = np.flatnonzero(np.diff(inside, prepend=1 - inside[0]))
    return array("q", [0] * int(inside[0]) + np.add.reduceat(lengths[there], starts).tolist())


def _lengths(text: str) -> np.ndarray:
    """The runs that a string of COCO's has, int64. Raises ValueError for a string that is none.

    A character holds 5 bits of a number, the lowest first, and a bit that says whether more follow; the topmost bit is
    the sign. From the fourth on a number is the difference from the number two places before.
    """
    codes = np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int64) - ord("0")
    if not len(codes) or codes.min() < 0 or codes.max() > 63 or codes[-1] & 32:
        raise ValueError
    ends = np.flatnonzero(codes & 32 == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(codes)) - np.repeat(starts, ends - starts + 1)
    if places.max() > 6:  # 35 bits
        raise ValueError
    numbers = np.add.reduceat((codes & 31) << 5 * places, starts)
    numbers -= np.where(codes[ends] & 16, 32 << 5 * places[ends], 0)
    for first in (1, 2):
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers


def as_in_file(segmentation: Segmentation, height: int, width: int) -> list[list[float]] | dict[str, Any]:
    """A segmentation as it stands in a file: a list of polygons, or size and counts."""
    if isinstance(segmentation, tuple):
        return [part.tolist() for part in segmentation]
    counts = segmentation if isinstance(segmentation, str) else segmentation.tolist()
    return {"size": [height, width], "counts": counts}


def mask_of(segmentation: Segmentation, height: int, width: int) -> np.ndarray:
    """The mask, uint8 (height, width), 1 inside. It may be empty where a polygon holds no pixel's centre."""
    return np.ascontiguousarray(_pycocotools().decode(_encoded(segmentation, height, width)))


def patch_of(segmentation: Segmentation, height: int, width: int) -> Patch:
    """The mask where there is any of it: of small objects in a large image a small part of its memory and time."""
    encoded = _encoded(segmentation, height, width)["counts"]
    ends = np.cumsum(_lengths(encoded if isinstance(encoded, str) else encoded.decode()))
    starts, ends = ends[:-1:2], ends[1::2]  # of the runs inside, in pixels down the columns
    if not len(starts):
        return Patch(0, 0, np.zeros((0, 0), bool))
    left, right = int(starts[0]) // height, (int(ends[-1]) - 1) // height + 1
    edges = np.zeros((right - left) * height + 1, np.int8)
    edges[starts - left * height] += 1
    edges[ends - left * height] -= 1
    columns = np.cumsum(edges[:-1], dtype=np.int8).astype(bool).reshape(right - left, height)
    rows = np.flatnonzero(columns.any(0))
    return Patch(int(rows[0]), left, columns[:, rows[0] : rows[-1] + 1].T)


def area_of(segmentation: Segmentation, height: int, width: int) -> float:
    """The number of pixels of the mask."""
    return float(_pycocotools().area(_encoded(segmentation, height, width)))


def run_string(mask: np.ndarray) -> str:
    """A mask, bool (height, width), as COCO's string of runs."""
    return _pycocotools().encode(np.asfortranarray(mask, np.uint8))["counts"].decode()


def _encoded(segmentation: Segmentation, height: int, width: int) -> dict[str, Any]:
    masks = _pycocotools()
    if isinstance(segmentation, tuple):
        return masks.merge(masks.frPyObjects(list(segmentation), height, width))
    runs: Any = as_in_file(segmentation, height, width)
    return runs if isinstance(segmentation, str) else masks.frPyObjects(runs, height, width)


def _pycocotools() -> ModuleType:
    try:
        import pycocotools.mask
    except ModuleNotFoundError as error:
        raise InputError("masks need pycocotools, which pip install 'lambdanets[detection]' brings") from error
    return pycocotools.mask
