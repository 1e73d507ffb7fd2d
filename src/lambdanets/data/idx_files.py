"""Reads sets of gray images in IDX files, such as MNIST, in torchvision's layout."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from lambdanets.data.labeled_images import ImageArray
from lambdanets.errors import InputError

_DIGITS = tuple("0123456789")
_GZIP_RATIO = 1040  # maximum of uncompressed / compressed size: deflate encodes at most 258 bytes in 2 bits
_CLASSES = {
    "FashionMNIST": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    "KMNIST": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    "MNIST": _DIGITS,
}


def find_idx_folder(folder: Path) -> Path | None:
    """Find the folder of IDX files in a root, a set's folder or `raw/` itself; None if there is none.

    Raises InputError if the root contains several sets.
    """
    for raw in (folder, folder / "raw"):
        if _find_file(raw, "train-images-idx3-ubyte") is not None:
            return raw
    sets = [name for name in _CLASSES if _find_file(folder / name / "raw", "train-images-idx3-ubyte") is not None]
    if len(sets) > 1:
        raise InputError(f"'{folder}' must contain one dataset, got {', '.join(sets)}; pass the folder of one of them")
    return folder / sets[0] / "raw" if sets else None


def read_idx_set(raw: Path) -> tuple[ImageArray, ImageArray, tuple[str, ...]]:
    """Read the train images, the t10k images and the class names from a folder of IDX files, gzipped or not.

    Sets with unknown names get the digits as class names. Raises InputError for a missing or damaged file.
    """
    parts = raw.resolve().parts
    classes = next((_CLASSES[part] for part in reversed(parts[-2:]) if part in _CLASSES), _DIGITS)
    return _read_split(raw, "train", classes), _read_split(raw, "t10k", classes), classes


def _read_split(raw: Path, split: str, classes: tuple[str, ...]) -> ImageArray:
    images_path = _require_file(raw, f"{split}-images-idx3-ubyte")
    labels_path = _require_file(raw, f"{split}-labels-idx1-ubyte")
    pixels, labels = _read_idx(images_path, 3), _read_idx(labels_path, 1)
    if len(pixels) != len(labels):
        raise InputError(f"'{labels_path}' must have {len(pixels)} labels, one per image, got {len(labels)}")
    if len(labels) and labels.max() >= len(classes):
        raise InputError(f"'{labels_path}' must have labels from 0 to {len(classes) - 1}, got {labels.max()}")
    return ImageArray(pixels, labels.tolist(), f"{raw}/{split}")


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of uint8: two zero bytes, type 8, the number of dimensions, their sizes, the data.

    A gzip file is decompressed only up to the size in the IDX header, to limit the memory.
    """
    magic = bytes([0, 0, 8, dimensions])
    gzipped = path.suffix == ".gz"
    try:
        with gzip.open(path) if gzipped else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if header[:4] != magic or len(header) < 4 + 4 * dimensions:
                raise InputError(f"'{path}' must begin with the bytes {magic.hex()}, got {header[:4].hex()!r}")
            shape = [int(size) for size in np.frombuffer(header, ">u4", dimensions, offset=4)]
            expected = math.prod(shape)
            if not expected:
                raise InputError(f"'{path}' must have sizes of at least 1 in its header, got {shape}")
            max_size = path.stat().st_size * (_GZIP_RATIO if gzipped else 1)
            content = file.read(expected) if expected <= max_size else b""
            excess = file.read(1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"'{path}' must be an IDX file: {error}") from error
    if excess or len(content) < expected:
        got = "more" if excess and len(content) == expected else "fewer"
        raise InputError(f"'{path}' must have {expected} bytes of data, the size in its header, got {got}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _require_file(raw: Path, name: str) -> Path:
    path = _find_file(raw, name)
    if path is None:
        raise InputError(f"'{raw}' must have a file '{name}' or '{name}.gz', got neither")
    return path


def _find_file(raw: Path, name: str) -> Path | None:
    return next((path for path in (raw / name, raw / f"{name}.gz") if path.is_file()), None)
