"""Labelled images in a folder with a sub-folder a class."""

from pathlib import Path

from lambdanets.data.images import images_under, is_image_name
from lambdanets.data.labeled_images import ImageFiles
from lambdanets.errors import InputError

_VALIDATION_NAMES = ("val", "valid", "validation", "test")


def split_folders(folder: Path) -> tuple[Path, Path | None] | None:
    """The folder's train and validation sub-folders, or None where it is not divided so.

    A `train` that holds class folders, with no validation folder beside it, stands alone. Raises InputError where
    other folders with images stand beside such a one: they could be classes or parts.
    """
    train = folder / "train"
    if not train.is_dir():
        return None
    validation = next((folder / name for name in _VALIDATION_NAMES if (folder / name).is_dir()), None)
    if validation is not None:
        return train, validation
    if not any(place.is_dir() and images_under(place) for place in train.iterdir()):
        return None  # a class that is called train
    others = [place.name for place in sorted(folder.iterdir()) if place.is_dir() and place != train]
    if any(images_under(folder / name) for name in others):
        raise InputError(
            f"expected {' or '.join(_VALIDATION_NAMES)} beside 'train' in '{folder}', but came {', '.join(others)}"
        )
    return train, None


def read_class_folders(folder: Path) -> tuple[ImageFiles, tuple[str, ...]]:
    """List the images of a folder with a sub-folder a class, and the class names, sorted.

    Images deeper inside a class folder belong to it; class folders without images are ignored, as are images beside
    the class folders. Raises InputError where there are no images or none is in a class folder.
    """
    found = {
        place.name: images
        for place in sorted(folder.iterdir())
        if place.is_dir() and not place.name.startswith(".") and (images := images_under(place))
    }
    if not found:
        if any(is_image_name(place.name) for place in folder.iterdir()):
            raise InputError(f"expected a sub-folder of images for each class in '{folder}', but its images lie loose")
        raise InputError(f"expected a sub-folder of images for each class in '{folder}', but there are no images in it")
    paths = [path for images in found.values() for path in images]
    labels = [number for number, images in enumerate(found.values()) for _ in images]
    return ImageFiles(paths, labels), tuple(found)
