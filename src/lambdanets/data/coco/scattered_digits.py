"""A synthetic detection set in COCO's format that needs no download: scikit-learn's digits at random positions."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.coco.segmentations import encode_rle, run_lengths
from lambdanets.files import atomic_write

CATEGORY_IDS = tuple(3 * digit + 1 for digit in range(10))  # with gaps, as in COCO
MIN_BRIGHTNESS = 80  # of the pixels of digits; the background is darker
_MIN_SCAN_VALUE = 5  # pixels of the scans are from 0 to 16; lower values are background
_HEIGHTS, _WIDTHS = (64, 96), (64, 128)
_MAX_ATTEMPTS = 40  # random positions that are tried for a digit, until one is free


def write_scattered_digits(folder: Path, training: int, validation: int, seed: int) -> None:
    """Write the set as train.json, val.json and PNG files in train/ and val/."""
    for split, (content, files) in scattered_digits(training, validation, seed).items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            atomic_write(folder / split / name, file)
        atomic_write(folder / f"{split}.json", content)


def scattered_digits(training: int, validation: int, seed: int) -> dict[str, tuple[bytes, dict[str, bytes]]]:
    """Return the encoded COCO instances and the PNG files by name, for the splits "train" and "val".

    training, validation: number of images.

    Images are gray, 64 to 96 pixels high and 64 to 128 pixels wide, never square. They have 1 to 6 digits of 16 to 32
    pixels that do not overlap; the ten categories are "0" to "9". Every tenth image has no digits. A tenth of the
    others have a crowd region, which is a row of small digits. Masks are polygons (one rectangle per run of pixels in a
    row of the scan) or RLE, compressed or uncompressed. Training and validation use different scans. The same seed
    gives the same files.
    """
    scans, digits = _scans()
    boundary = len(scans) * 4 // 5
    splits = {}
    for number, (split, count) in enumerate((("train", training), ("val", validation))):
        chosen = slice(0, boundary) if split == "train" else slice(boundary, None)
        builder = _SplitBuilder(split, scans[chosen], digits[chosen], np.random.default_rng([seed, number]))
        for index in range(count):
            builder.add_image(index)
        splits[split] = json.dumps(builder.content).encode(), builder.files
    return splits


def _scans() -> tuple[np.ndarray, np.ndarray]:
    """Return scans, uint8 (n, 8, 8), 0 for background, else MIN_BRIGHTNESS to 255; and their digits (n,)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    brightness = MIN_BRIGHTNESS + (digits.images - _MIN_SCAN_VALUE) * ((255 - MIN_BRIGHTNESS) / (16 - _MIN_SCAN_VALUE))
    return np.where(digits.images >= _MIN_SCAN_VALUE, np.rint(brightness), 0).astype(np.uint8), digits.target


class _SplitBuilder:
    """Generates the images of a split and their annotations."""

    def __init__(self, split: str, scans: np.ndarray, digits: np.ndarray, rng: np.random.Generator) -> None:
        self._split, self._scans, self._digits, self._rng = split, scans, digits, rng
        self.files: dict[str, bytes] = {}
        self.content: dict[str, Any] = {
            "info": {"description": "scikit-learn's scanned digits, scattered"},
            "images": [],
            "annotations": [],
            "categories": [{"id": number, "name": str(digit)} for digit, number in enumerate(CATEGORY_IDS)],
        }

    def add_image(self, index: int) -> None:
        rng = self._rng
        height = int(rng.integers(_HEIGHTS[0], _HEIGHTS[1] + 1))
        width = int(rng.integers(_WIDTHS[0], _WIDTHS[1] + 1))
        width += width == height
        canvas = rng.integers(0, MIN_BRIGHTNESS // 2, (height, width), np.uint8)
        is_free = np.ones((height, width), bool)
        image_id = index + 1
        name = f"{self._split}_{image_id:05}.png"
        self.content["images"].append({"id": image_id, "file_name": name, "height": height, "width": width})
        if image_id % 10:
            for _ in range(rng.integers(1, 7)):
                self._paste(canvas, is_free, image_id, crowd=False)
            if rng.random() < 0.1:
                self._paste(canvas, is_free, image_id, crowd=True)
        file = io.BytesIO()
        Image.fromarray(canvas).save(file, "PNG")
        self.files[name] = file.getvalue()

    def _paste(self, canvas: np.ndarray, is_free: np.ndarray, image_id: int, *, crowd: bool) -> None:
        """Paste a digit, or for a crowd a row of scans of one digit, at a random free position if one is found."""
        rng = self._rng
        digit = int(rng.integers(10))
        scan_indices = np.flatnonzero(self._digits == digit)
        if crowd:
            scan, scale = np.hstack(self._scans[rng.choice(scan_indices, rng.integers(3, 6))]), 1
        else:
            scan, scale = self._scans[rng.choice(scan_indices)], int(rng.integers(2, 5))
        pixels = scan.repeat(scale, 0).repeat(scale, 1)
        for _ in range(_MAX_ATTEMPTS):
            top = int(rng.integers(canvas.shape[0] - pixels.shape[0] + 1))
            left = int(rng.integers(canvas.shape[1] - pixels.shape[1] + 1))
            region = slice(top, top + pixels.shape[0]), slice(left, left + pixels.shape[1])
            if is_free[region].all():
                break
        else:
            return
        is_free[region] = False
        np.copyto(canvas[region], pixels, where=pixels > 0)
        mask = np.zeros(canvas.shape, bool)
        mask[region] = pixels > 0
        encoding = "uncompressed" if crowd else str(rng.choice(["polygons", "uncompressed", "compressed"]))
        if encoding == "polygons":
            segmentation: Any = _to_rectangles(scan > 0, scale, (left, top))
        else:
            height, width = canvas.shape
            counts = encode_rle(mask)
            runs = run_lengths(counts, height, width).tolist()
            segmentation = {"size": [height, width], "counts": runs if encoding == "uncompressed" else counts}
        self._annotate(image_id, digit, mask, segmentation, crowd)

    def _annotate(self, image_id: int, digit: int, mask: np.ndarray, segmentation: Any, crowd: bool) -> None:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        corner = int(columns[0]), int(rows[0])
        self.content["annotations"].append(
            {
                "id": len(self.content["annotations"]) + 1,
                "image_id": image_id,
                "category_id": CATEGORY_IDS[digit],
                "bbox": [*corner, int(columns[-1]) + 1 - corner[0], int(rows[-1]) + 1 - corner[1]],
                "area": int(mask.sum()),
                "iscrowd": int(crowd),
                "segmentation": segmentation,
            }
        )


def _to_rectangles(scan: np.ndarray, scale: int, corner: tuple[int, int]) -> list[list[int]]:
    """Return one rectangle per run of pixels in a row of the scan, scaled and moved to a corner (x, y)."""
    x, y = corner
    rectangles = []
    for row, pixels in enumerate(np.pad(scan, ((0, 0), (1, 1))).astype(np.int8)):
        edges = np.diff(pixels)
        top, bottom = y + row * scale, y + (row + 1) * scale
        for start, end in zip(np.flatnonzero(edges > 0), np.flatnonzero(edges < 0), strict=True):
            left, right = x + int(start) * scale, x + int(end) * scale
            rectangles.append([left, top, right, top, right, bottom, left, bottom])
    return rectangles
