"""Datasets that timm opens by a name with a prefix, such as "torch/cifar10" or "hfds/owner/name"."""

from typing import Any

from lambdanets.data.images import read_image
from lambdanets.data.labeled_images import ImageFiles, dataset_images
from lambdanets.errors import InputError, one_line

_PREFIXES = ("torch/", "hfds/")  # timm's other sets have no random access


def is_timm_name(data: str) -> bool:
    """Whether `data` begins with one of timm's dataset prefixes and a slash, ignoring case."""
    return data.lower().startswith(_PREFIXES)


def open_timm_dataset(data: str, root: str | None) -> tuple[ImageFiles, ImageFiles]:
    """Open the train and validation splits of a dataset.

    root: the folder of the dataset. "torch/" datasets are not downloaded.

    If there is no split "validation", "test" is used. Raises InputError, which includes the reason, if timm fails.
    """
    if data.lower().startswith("torch/") and root is None:
        raise InputError(f"data_root must be the folder that contains '{data}', got None; set --data-root")
    if data.lower() in ("torch/folder", "torch/image_folder"):  # without splits, timm would open all images as both
        raise InputError(f"data must be the folder itself, '{root}', got '{data}'")
    train = _open_split(data, root, "train")
    try:
        return train, _open_split(data, root, "validation")
    except InputError:
        return train, _open_split(data, root, "test")


def _open_split(data: str, root: str | None, split: str) -> ImageFiles:
    import timm.data

    try:
        # with an empty mode, timm does not convert images
        items: Any = timm.data.create_dataset(data, root=root, split=split, input_img_mode="")
        if hasattr(items, "reader"):
            items = items.reader
            labels = [int(label) for label in items.iter_targets()]
            names = {index: str(name) for name, index in items.class_to_idx.items()}
        else:
            if hasattr(items, "loader"):
                # torchvision's default loader clips 16-bit images and ignores the EXIF orientation
                items.loader = read_image
            labels = [int(label) for label in items.targets]
            # a class name of ImageNet is a list of synonyms
            classes = enumerate(getattr(items, "classes", ()))
            names = {index: name if isinstance(name, str) else ", ".join(name) for index, name in classes}
        if min(labels, default=0) < 0:
            raise ValueError("some of its images have no label (-1)")
    except Exception as error:  # data sets raise exceptions of any type, and may have labels that are no classes
        raise InputError(f"timm cannot open the dataset '{data}' (split '{split}'): {one_line(error)}") from error
    indices = range(max([-1, *names, *labels]) + 1)
    return dataset_images(items, labels, tuple(names.get(index, str(index)) for index in indices), f"{data}/{split}")
