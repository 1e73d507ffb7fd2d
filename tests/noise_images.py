"""Folders of noise images."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_images(folder: Path, count: int, brightness: int, height: int = 10) -> None:
    """Write noise images, 12 pixels wide, with a mean brightness; the same images at every call."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(brightness)
    for i in range(count):
        pixels = np.clip(random.normal(brightness, 30, (height, 12, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")


def write_two_classes(folder: Path) -> Path:
    """Write 10 images in each of the class folders dark and light."""
    write_images(folder / "dark", 10, 60)
    write_images(folder / "light", 10, 190)
    return folder
