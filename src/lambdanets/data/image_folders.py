"""Labeled images in a folder with one sub-folder per class."""

from pathlib import Path

from lambdanets.data.images import is_image_name, list_images
from lambdanets.data.labeled_images import ImageFiles
from lambdanets.errors import InputError

VALIDATION_NAMES = ("val", "valid", "validation", "test")


def split_folders(folder: Path) -> tuple[Path, Path | None] | None:
    """Return the train and validation sub-folders of a folder, or None if it does not have this layout.

    The validation folder is None if `train` has class folders and there is no validation folder. Raises InputError if
    there are then other folders with images, because they could be classes or splits.
    """
    train = folder / "train"
    if not train.is_dir():
        return None
    validation = next((folder / name for name in VALIDATION_NAMES if (folder / name).is_dir()), None)
    if validation is not None:
        return train, validation
    if not any(child.is_dir() and list_images(child) for child in train.iterdir()):
        return None  # a class named train
    others = [child.name for child in sorted(folder.iterdir()) if child.is_dir() and child != train]
    if any(list_images(folder / name) for name in others):
        raise InputError(
            f"'{folder}' must have 'train' and {' or '.join(VALIDATION_NAMES)}, or class folders only, "
            f"got 'train' and {', '.join(others)}"
        )
    return train, None


def read_class_folders(folder: Path) -> tuple[ImageFiles, tuple[str, ...]]:
    """Return the images of a folder with one sub-folder per class, and the sorted class names.

    Class folders are searched recursively. Class folders without images and images outside class folders are ignored.
    Raises InputError if no class folder has images.
    """
    by_class = {
        child.name: images
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.name.startswith(".") and (images := list_images(child))
    }
    if not by_class:
        has_images = any(is_image_name(child.name) for child in folder.iterdir())
        reason = "got images outside class folders" if has_images else "got no images"
        raise InputError(f"'{folder}' must have one sub-folder of images per class, {reason}")
    paths = [path for images in by_class.values() for path in images]
    labels = [label for label, images in enumerate(by_class.values()) for _ in images]
    return ImageFiles(paths, labels), tuple(by_class)
