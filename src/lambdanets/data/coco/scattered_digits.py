"""A synthetic detection set in COCO's format that needs no download: scikit-learn's digits at random positions."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from PIL import Image

from lambdanets.data.coco.annotations import AnnotatedImage, AnnotatedImages, AnnotationProblems, Category, Object
from lambdanets.data.coco.segmentations import box_and_area, encode_rle

CATEGORIES = tuple(Category(3 * digit + 1, str(digit)) for digit in range(10))  # ids with gaps, as in COCO
SPLITS = ("train", "val")
MIN_BRIGHTNESS = 80  # of the pixels of digits; the background is darker
_MIN_SCAN_VALUE = 5  # pixels of the scans are from 0 to 16; lower values are background
_HEIGHTS, _WIDTHS = (64, 96), (64, 128)
_MAX_ATTEMPTS = 40  # random positions that are tried for a digit, until one is free


@lru_cache(maxsize=1)
def open_digits() -> tuple[AnnotatedImages, AnnotatedImages]:
    """Return the training and validation sets of the data "digits"."""
    return scattered_digits("train", 300, 0), scattered_digits("val", 60, 0)


def scattered_digits(split: str, count: int, seed: int) -> AnnotatedImages:
    """Return a split, "train" or "val", of `count` images in memory.

    Images are gray, 64 to 96 pixels high and 64 to 128 pixels wide, never square. They have 1 to 6 digits of 16 to 32
    pixels that do not overlap; the ten categories are "0" to "9". Every tenth image has no digits. A tenth of the
    others have a crowd region, which is a row of small digits. Training and validation use different scans. The same
    seed gives the same images.
    """
    from sklearn.datasets import load_digits

    rng = np.random.default_rng([seed, SPLITS.index(split)])
    digits = load_digits()
    boundary = len(digits.images) * 4 // 5
    chosen = slice(0, boundary) if split == "train" else slice(boundary, None)
    scale = (255 - MIN_BRIGHTNESS) / (16 - _MIN_SCAN_VALUE)
    brightness = np.rint(MIN_BRIGHTNESS + (digits.images - _MIN_SCAN_VALUE) * scale)
    scans = np.where(digits.images >= _MIN_SCAN_VALUE, brightness, 0).astype(np.uint8)[chosen]
    scans_of = [scans[digits.target[chosen] == digit] for digit in range(10)]
    images, num_objects = [], 0
    for number in range(1, count + 1):
        height, width = (int(rng.integers(low, high + 1)) for low, high in (_HEIGHTS, _WIDTHS))
        width += width == height
        canvas = rng.integers(0, MIN_BRIGHTNESS // 2, (height, width), np.uint8)
        is_free = np.ones((height, width), bool)
        objects: list[Object | None] = []
        if number % 10:
            objects = [_paste(rng, scans_of, canvas, is_free, crowd=False) for _ in range(rng.integers(1, 7))]
            if rng.random() < 0.1:
                objects.append(_paste(rng, scans_of, canvas, is_free, crowd=True))
        numbered = [replace(obj, id=num_objects + i) for i, obj in enumerate(filter(None, objects), 1)]
        num_objects += len(numbered)
        name, image = f"{split}_{number:05}.png", Image.fromarray(canvas)
        images.append(AnnotatedImage(number, name, height, width, tuple(numbered), image))
    return AnnotatedImages(CATEGORIES, tuple(images), AnnotationProblems())


def _paste(
    rng: np.random.Generator, scans_of: list[np.ndarray], canvas: np.ndarray, is_free: np.ndarray, *, crowd: bool
) -> Object | None:
    """Paste a digit, or for a crowd a row of scans of one digit, at a random free position if one is found.

    scans_of: the scans of each digit, uint8 (n, 8, 8): background is 0, other pixels are MIN_BRIGHTNESS to 255.
    """
    digit = int(rng.integers(10))
    if crowd:
        scan, scale = np.hstack([*rng.choice(scans_of[digit], rng.integers(3, 6))]), 1
    else:
        scan, scale = rng.choice(scans_of[digit]), int(rng.integers(2, 5))
    pixels = scan.repeat(scale, 0).repeat(scale, 1)
    for _ in range(_MAX_ATTEMPTS):
        top = int(rng.integers(canvas.shape[0] - pixels.shape[0] + 1))
        left = int(rng.integers(canvas.shape[1] - pixels.shape[1] + 1))
        region = slice(top, top + pixels.shape[0]), slice(left, left + pixels.shape[1])
        if is_free[region].all():
            break
    else:
        return None
    is_free[region] = False
    np.copyto(canvas[region], pixels, where=pixels > 0)
    if not crowd:
        rng.integers(3)  # once chose how the mask was written; without it, all later images would be others
    rle = encode_rle(pixels > 0, canvas.shape, top, left)
    box, area = box_and_area(rle, *canvas.shape)
    return Object(0, digit, box, area, crowd, rle)
