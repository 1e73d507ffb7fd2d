"""Example images for a model, which are drawn or taken from installed packages: nothing is downloaded."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from lambdanets.data.coco.scattered_digits import scattered_digits
from lambdanets.data.datasets import open_evaluation_images
from lambdanets.data.images import read_image
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector
from lambdanets.inference.segmenter import Segmenter

# Caption -> name of a file in scikit-image.
_PHOTOS = {"cat": "chelsea", "rocket": "rocket", "coffee": "coffee", "horse": "horse"}


def example_images(source: Classifier | Detector | Segmenter) -> list[tuple[Image.Image, str]]:
    """Return images with captions that suit the classes of a model."""
    digits = {str(digit) for digit in range(10)}
    if digits.issuperset(source.card.classes):
        return _scanned_digits() if isinstance(source, Classifier) else _scattered_digits()
    if not isinstance(source, Classifier) and any("nucle" in name or "cell" in name for name in source.classes):
        return [draw_nuclei(count, seed) for seed, count in enumerate((8, 20, 45))]
    photos = _photos()
    return [(photo, name) for photo, name in photos if name in source.classes] or photos


def draw_nuclei(count: int, seed: int, side: int = 256) -> tuple[Image.Image, str]:
    """Draw bright ellipses on a dark background, as in fluorescence microscopy, and a caption with their number."""
    random = np.random.default_rng(seed)
    drawn = Image.new("L", (side, side), 12)
    centers: list[tuple[float, float]] = []
    for _ in range(100 * count):
        x, y = random.uniform(12, side - 12, 2)
        if len(centers) == count:
            break
        if any((x - u) ** 2 + (y - v) ** 2 < 26**2 for u, v in centers):
            continue
        centers.append((x, y))
        layer = Image.new("L", (side, side))
        width, height = random.uniform(7, 12, 2)
        ImageDraw.Draw(layer).ellipse((x - width, y - height, x + width, y + height), fill=255)
        layer = layer.rotate(random.uniform(0, 180), center=(x, y))
        drawn.paste(int(random.uniform(90, 220)), mask=layer)
    noise = random.normal(0, 4, (side, side))
    pixels = np.asarray(drawn.filter(ImageFilter.GaussianBlur(1.5)), np.float64) + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), f"{len(centers)} blobs"


def _scanned_digits() -> list[tuple[Image.Image, str]]:
    digits = open_evaluation_images("digits")[0]
    chosen = [list(digits.labels).index(label) for label in (2, 3, 5, 0, 8, 4)]
    return [(image, f"digit {label}") for image, label in map(digits.load, chosen)]


def _scattered_digits() -> list[tuple[Image.Image, str]]:
    images = scattered_digits("val", 3, seed=0)
    return [(images.load(index)[0], str(index)) for index in range(3)]


def _photos() -> list[tuple[Image.Image, str]]:
    """Return photographs that are part of scikit-image."""
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    return [(read_image(path), caption) for caption, stem in _PHOTOS.items() for path in folder.glob(f"{stem}.*")]
