"""MNIST-like sets of grey images in IDX files, in the layout that torchvision keeps them in."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from lambdanets.errors import InputError
from lambdanets.training.data.labelled_images import ImageArray

_DIGITS = tuple("0123456789")
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
    """The raw folder of IDX files in a root, a set's own folder or the raw folder itself; None if there is none.

    Raises InputError where the root holds several sets.
    """
    for place in (folder, folder / "raw"):
        if _file(place, "train-images-idx3-ubyte") is not None:
            return place
    sets = [name for name in _CLASSES if _file(folder / name / "raw", "train-images-idx3-ubyte") is not None]
    if len(sets) > 1:
        raise InputError(f"expected one data set in '{folder}', but it holds {', '.join(sets)}: give one's own folder")
    return folder / sets[0] / "raw" if sets else None


def read_idx_set(raw: Path) -> tuple[ImageArray, ImageArray, tuple[str, ...]]:
    """Read a raw folder's train and t10k images and the class names, gzipped or not, writing nothing.

    A set of a name not known has the digits as its class names. Raises InputError for a missing or damaged file.
    """
    parts = raw.resolve().parts
    classes = next((_CLASSES[part] for part in reversed(parts[-2:]) if part in _CLASSES), _DIGITS)
    return _read_part(raw, "train", classes), _read_part(raw, "t10k", classes), classes


def _read_part(raw: Path, part: str, classes: tuple[str, ...]) -> ImageArray:
    images_path = _existing(raw, f"{part}-images-idx3-ubyte")
    labels_path = _existing(raw, f"{part}-labels-idx1-ubyte")
    pixels, labels = _read_idx(images_path, 3), _read_idx(labels_path, 1)
    if len(pixels) != len(labels):
        raise InputError(f"expected {len(pixels)} labels in '{labels_path}', as it has images, but came {len(labels)}")
    if len(labels) and labels.max() >= len(classes):
        raise InputError(f"expected labels from 0 to {len(classes) - 1} in '{labels_path}', but came {labels.max()}")
    return ImageArray(pixels, labels.tolist(), f"{raw}/{part}")


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes: two zero bytes, type 8, the number of dimensions, their sizes, the data."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"expected an IDX file in '{path}', but it cannot be read: {error}") from error
    magic = bytes([0, 0, 8, dimensions])
    start = 4 + 4 * dimensions
    if content[:4] != magic or len(content) < start:
        raise InputError(f"expected '{path}' to begin with the bytes {magic.hex()}, but came {content[:4].hex()!r}")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise InputError(f"expected '{path}' to hold {expected} bytes, as its header says, but came {len(content)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _existing(raw: Path, name: str) -> Path:
    path = _file(raw, name)
    if path is None:
        raise InputError(f"expected the file '{name}' or '{name}.gz' in '{raw}', but there is neither")
    return path


def _file(raw: Path, name: str) -> Path | None:
    return next((path for path in (raw / name, raw / f"{name}.gz") if path.is_file()), None)
