"""A small set in COCO's format for trying detection without a download: scikit-learn's scanned digits, scattered."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.coco.segmentations import run_string
from lambdanets.errors import InputError
from lambdanets.files import atomic_write

CATEGORY_IDS = tuple(3 * digit + 1 for digit in range(10))  # with holes, as COCO's own
DARKEST = 80  # a digit's pixels are at least so bright, the ground is darker
_FAINTEST = 5  # of 16 in the scan: what is fainter is no part of the digit
_HEIGHTS, _WIDTHS = (64, 96), (64, 128)
_TRIES = 40


def write_scattered_digits(folder: Path, training: int, validation: int, seed: int) -> None:
    """Write the set as train.json, val.json and PNG files in train/ and val/.

    Raises InputError as `scattered_digits` does, and where files cannot be written.
    """
    parts = scattered_digits(training, validation, seed)
    try:
        for part, (content, files) in parts.items():
            (folder / part).mkdir(parents=True, exist_ok=True)
            for name, file in files.items():
                atomic_write(folder / part / name, file)
            atomic_write(folder / f"{part}.json", content)
    except OSError as error:
        raise InputError(f"expected to write into '{folder}', but: {error.strerror or error}") from error


def scattered_digits(training: int, validation: int, seed: int) -> dict[str, tuple[bytes, dict[str, bytes]]]:
    """For "train" and "val", instances in COCO's format and PNG files by name: so many images with 1 to 6 digits each.

    Grey images 64 to 96 pixels high and 64 to 128 wide, never square; digits 16 to 32 pixels high that do not overlap;
    ten categories, "0" to "9". Every tenth image has no digits, one in ten a crowd region, of small digits in a row.
    Masks are polygons, a part for each run of pixels in each row of the scan, or RLE of either kind. Training and
    validation share no scans. The same seed gives the same files. Raises InputError for counts below 1.
    """
    for name, count in (("training", training), ("validation", validation)):
        if count < 1:
            raise InputError(f"{name} must be at least 1, got {count}")
    scans, digits = _scans()
    split = len(scans) * 4 // 5
    parts = {}
    for number, (part, count) in enumerate((("train", training), ("val", validation))):
        chosen = slice(0, split) if part == "train" else slice(split, None)
        scatter = _Scatter(part, scans[chosen], digits[chosen], np.random.default_rng([seed, number]))
        for place in range(count):
            scatter.add(place)
        parts[part] = json.dumps(scatter.content).encode(), scatter.files
    return parts


def _scans() -> tuple[np.ndarray, np.ndarray]:
    """Scans uint8 (n, 8, 8), 0 where there is no digit, else its brightness from DARKEST; and the digits (n,)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    brightness = DARKEST + (bunch.images - _FAINTEST) * ((255 - DARKEST) / (16 - _FAINTEST))
    return np.where(bunch.images >= _FAINTEST, np.rint(brightness), 0).astype(np.uint8), bunch.target


class _Scatter:
    """Makes the images of a part, and gathers what train.json or val.json says of them."""

    def __init__(self, part: str, scans: np.ndarray, digits: np.ndarray, random: np.random.Generator) -> None:
        self._part, self._scans, self._digits, self._random = part, scans, digits, random
        self.files: dict[str, bytes] = {}
        self.content: dict[str, Any] = {
            "info": {"description": "scikit-learn's scanned digits, scattered"},
            "images": [],
            "annotations": [],
            "categories": [{"id": number, "name": str(digit)} for digit, number in enumerate(CATEGORY_IDS)],
        }

    def add(self, place: int) -> None:
        random = self._random
        height = int(random.integers(_HEIGHTS[0], _HEIGHTS[1] + 1))
        width = int(random.integers(_WIDTHS[0], _WIDTHS[1] + 1))
        width += width == height
        canvas = random.integers(0, DARKEST // 2, (height, width), np.uint8)
        free = np.ones((height, width), bool)
        number = place + 1
        name = f"{self._part}_{number:05}.png"
        self.content["images"].append({"id": number, "file_name": name, "height": height, "width": width})
        if number % 10:
            for _ in range(random.integers(1, 7)):
                self._paste(canvas, free, number, crowd=False)
            if random.random() < 0.1:
                self._paste(canvas, free, number, crowd=True)
        file = io.BytesIO()
        Image.fromarray(canvas).save(file, "PNG")
        self.files[name] = file.getvalue()

    def _paste(self, canvas: np.ndarray, free: np.ndarray, image: int, *, crowd: bool) -> None:
        """Paste a digit, or a row of one in several hands, where there is room, if there is."""
        random = self._random
        digit = int(random.integers(10))
        of_digit = np.flatnonzero(self._digits == digit)
        if crowd:
            scan, scale = np.hstack(self._scans[random.choice(of_digit, random.integers(3, 6))]), 1
        else:
            scan, scale = self._scans[random.choice(of_digit)], int(random.integers(2, 5))
        pixels = scan.repeat(scale, 0).repeat(scale, 1)
        for _ in range(_TRIES):
            top = int(random.integers(canvas.shape[0] - pixels.shape[0] + 1))
            left = int(random.integers(canvas.shape[1] - pixels.shape[1] + 1))
            where = slice(top, top + pixels.shape[0]), slice(left, left + pixels.shape[1])
            if free[where].all():
                break
        else:
            return
        free[where] = False
        np.copyto(canvas[where], pixels, where=pixels > 0)
        mask = np.zeros(canvas.shape, bool)
        mask[where] = pixels > 0
        kind = "runs" if crowd else str(random.choice(["polygons", "runs", "string"]))
        if kind == "polygons":
            segmentation: Any = _rectangles(scan > 0, scale, (left, top))
        else:
            counts = _runs(mask) if kind == "runs" else run_string(mask)
            segmentation = {"size": list(mask.shape), "counts": counts}
        self._annotate(image, digit, mask, segmentation, crowd)

    def _annotate(self, image: int, digit: int, mask: np.ndarray, segmentation: Any, crowd: bool) -> None:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        corner = int(columns[0]), int(rows[0])
        self.content["annotations"].append(
            {
                "id": len(self.content["annotations"]) + 1,
                "image_id": image,
                "category_id": CATEGORY_IDS[digit],
                "bbox": [*corner, int(columns[-1]) + 1 - corner[0], int(rows[-1]) + 1 - corner[1]],
                "area": int(mask.sum()),
                "iscrowd": int(crowd),
                "segmentation": segmentation,
            }
        )


def _runs(mask: np.ndarray) -> list[int]:
    """The lengths of runs down the columns, of zeros first."""
    pixels = mask.ravel(order="F")
    starts = np.flatnonzero(np.diff(pixels)) + 1
    edges = [0] * (1 + int(pixels[0])) + starts.tolist() + [len(pixels)]
    return np.diff(edges).tolist()


def _rectangles(scan: np.ndarray, scale: int, corner: tuple[int, int]) -> list[list[int]]:
    """A rectangle for each run of pixels in each row of a scan, enlarged, its corner at (x, y)."""
    x, y = corner
    parts = []
    for row, pixels in enumerate(np.pad(scan, ((0, 0), (1, 1))).astype(np.int8)):
        steps = np.diff(pixels)
        top, bottom = y + row * scale, y + (row + 1) * scale
        for start, end in zip(np.flatnonzero(steps > 0), np.flatnonzero(steps < 0), strict=True):
            left, right = x + int(start) * scale, x + int(end) * scale
            parts.append([left, top, right, top, right, bottom, left, bottom])
    return parts
