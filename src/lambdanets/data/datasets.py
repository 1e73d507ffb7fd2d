"""Opens datasets in any supported format as a training and a validation set."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.image_folders import find_splits
from lambdanets.data.image_search import list_files
from lambdanets.data.images import read_image
from lambdanets.data.labeled_images import ImageFiles, LabeledImages, dataset_images
from lambdanets.data.shards import SHARD_LIST, ShardedImages, is_url, open_shards
from lambdanets.errors import InputError, first_few, one_line
from lambdanets.files import nfc

_TIMM_PREFIXES = ("torch/", "hfds/")  # timm's other sets have no random access


@dataclass(frozen=True)
class Splits:
    """A training and a validation set with the same class indices.

    source: the dataset, for messages.
    test: if training images were held out, the original validation set. The final accuracy is measured on it, because
        the held-out images are used to select the weights.
    left_out: number of files that are not used, by reason.
    held_out: if the dataset has no validation set, a hash of the classes, file names and labels of the images that were
        held out of all; else "".
    """

    train: LabeledImages
    validation: LabeledImages
    source: str
    test: LabeledImages | None
    left_out: Mapping[str, int]
    held_out: str

    @property
    def fingerprint(self) -> str:
        """A hash of the classes and of all file names and labels."""
        return _fingerprint(self.train.classes, self.train, self.validation, *filter(None, [self.test]))


def _fingerprint(classes: tuple[str, ...], *sets: LabeledImages) -> str:
    """Hash classes and all file names and labels, or the shards' hashes. Reads no images."""
    digest = hashlib.sha256(repr(classes).encode())
    for images in sets:
        if isinstance(images, ShardedImages):
            digest.update(images.fingerprint.encode())
            continue
        for index, label in enumerate(images.labels):
            digest.update(f"{nfc(Path(images.name(index)).name)!r} {label}\n".encode())
    return digest.hexdigest()


def open_splits(
    data: str,
    *,
    root: str | None = None,
    validation_share: float = 0.2,
    seed: int = 0,
    hold_out: float = 0.0,
    training_images: int | None = None,
) -> Splits:
    """Open a dataset as a training and a validation set.

    data: one of
      - "digits": scikit-learn's 1,797 gray images of 8 x 8 pixels;
      - a folder with one sub-folder per class, or with class folders in a training and a validation or test split (see
        `find_splits`); images outside class folders are left out;
      - an uncompressed tar of such a folder, also with nested tars;
      - shards written by `lambdanets shard`: a folder with shards.json, or its URL (see `shards.py`);
      - a name with one of timm's prefixes "torch/" or "hfds/", such as "torch/mnist".
    root: the folder of a dataset with a timm prefix.
    validation_share: fraction of the images that are held out for validation if the set has no validation set.
    hold_out: fraction of the training images that become the validation set; the original one becomes the test set.
    training_images: number of training images that are used, by default all. None for shards.

    Images are drawn with `seed`, stratified by class and independently of the order in the file system; of shards,
    whole shards are drawn. Images are decoded only for sets without random access. Raises InputError for a dataset that
    is missing, damaged, empty or has only one class, for a validation class that training does not have, for a class
    with 1 image or a set with 1 shard that must be divided, and for a number of training images that is not possible.
    """
    train, validation, left_out = _open(data, root)
    # of shards, all would be read to find the classes that are used
    used = range(len(train.classes)) if isinstance(train, ShardedImages) else sorted(set(train.labels))
    if len(used) < 2:
        got = f"only '{train.classes[used[0]]}'" if used else "images without classes"
        raise InputError(f"{train.source} must have images of at least 2 classes, got {got}")
    source, test, held_out = train.source, None, ""
    if validation is None:
        train, validation, source = _hold_out(train, source, validation_share, seed)
        held_out = _fingerprint(train.classes, validation)
    else:
        source = f"{source} and {validation.source}"
        validation = remap_labels(validation, train.classes)
    if hold_out:
        test = validation
        train, validation, source = _hold_out(train, source, hold_out, seed)
    if training_images is not None and training_images != (available := len(train)):
        if isinstance(train, ShardedImages):
            raise InputError(f"training_images must be None for shards ({source}), got {training_images}")
        minimum = len(set(train.labels))  # one per class, also of the others
        if not minimum <= training_images <= available - minimum:
            raise InputError(f"training_images must be {minimum} to {available - minimum}, got {training_images}")
        train, *_ = _hold_out(train, source, available - training_images, seed)
        source = f"{source}, {training_images} of {available} training images drawn with seed {seed}"
    return Splits(train, validation, source, test, left_out, held_out)


def open_evaluation_images(
    data: str, root: str | None = None, held_out: str = "", *, validation_share: float = 0.2, seed: int = 0
) -> tuple[LabeledImages, str, Mapping[str, int]]:
    """Open the validation set of a dataset; if it has none, the images that training held out, or else all its images.

    data, root, validation_share, seed: as for `open_splits`. held_out: that of the training (see `Splits`), a hash by
    which the dataset of the training is recognized in another place.

    Returns also the source of the images, for messages, and the number of files that are not used, by reason. Raises
    InputError for a dataset that is missing, damaged, empty or unlabeled.
    """
    train, validation, left_out = _open(data, root)
    images = train if validation is None else validation
    if not images.classes or not len(images):
        raise InputError(f"{images.source} must have {'images' if images.classes else 'labels'}, got none")
    if validation is not None:
        return validation, validation.source, left_out
    if held_out:
        with suppress(InputError):  # another dataset, which cannot be divided
            _, validation, source = _hold_out(train, train.source, validation_share, seed)
            if _fingerprint(train.classes, validation) == held_out:
                return validation, source, left_out
    other = " and is not what was divided in training" if held_out else ""
    return train, f"all of {train.source}, which has no validation split{other}", left_out


def _open(data: str, root: str | None) -> tuple[LabeledImages, LabeledImages | None, Counter[str]]:
    """Open the training and the validation set, or None, and count the files that are left out."""
    if root is not None and not is_timm_name(data):
        raise InputError(f"data_root is for timm datasets such as 'torch/cifar10', got data '{data}'")
    if data == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        items = [(Image.fromarray(image), label) for image, label in zip(pixels, digits.target.tolist(), strict=True)]
        return dataset_images(items, digits.target.tolist(), tuple("0123456789"), "digits"), None, Counter()
    if is_timm_name(data):
        return *_open_timm(data, root), Counter()
    path = Path(data)
    if is_url(data) or (data and (path / SHARD_LIST).is_file()):
        shards = open_shards(data)
        return shards["train"], shards.get("validation"), Counter()
    is_tar = path.suffix.lower() == ".tar" and path.exists()
    if not data or not (path.is_dir() or is_tar):
        got = f"'{data}'{'' if path.exists() else ', which does not exist; if it was moved, set data to its new path'}"
        raise InputError(f"data must be 'digits', a folder, an uncompressed .tar or a timm dataset, got {got}")
    return find_splits(str(path), *list_files(path))


def is_timm_name(data: str) -> bool:
    """Whether `data` begins with one of timm's dataset prefixes and a slash, ignoring case."""
    return data.lower().startswith(_TIMM_PREFIXES)


def _open_timm(data: str, root: str | None) -> tuple[ImageFiles, ImageFiles | None]:
    """Open the training and the validation set of a name with a prefix; None if no other split has labels.

    root: the folder of the dataset. "torch/" datasets are not downloaded.

    If there is no split "validation", "test" is used. Raises InputError, which includes the reason, if timm fails.
    """
    if data.lower().startswith("torch/") and root is None:
        raise InputError(f"data_root must be the folder that contains '{data}', got None; set --data-root")
    if data.lower() in ("torch/folder", "torch/image_folder"):  # without splits, timm would open all images as both
        raise InputError(f"data must be the folder itself, '{root}', got '{data}'")
    train = _open_timm_split(data, root, "train")
    errors: list[InputError] = []
    for split in ("validation", "test"):
        try:
            return train, _open_timm_split(data, root, split)
        except InputError as error:
            errors.append(error)
    # the hub's package lists the splits, which may have another one for validation
    others = r"Unknown split .* one of \[('(train|test)'(, )?)+\]|have no label"
    if all(re.search(others, str(error)) for error in errors):
        return train, None
    raise errors[-1]


def _open_timm_split(data: str, root: str | None, split: str) -> ImageFiles:
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


def _hold_out(images: LabeledImages, source: str, size: float, seed: int) -> tuple[LabeledImages, LabeledImages, str]:
    """Hold out random images, stratified by class; of shards, whole ones. size: number of images, or a fraction.

    Returns the images without those that are held out, the latter, and the source of the dataset with their number.
    """
    from sklearn.model_selection import train_test_split

    labels: Any = None
    select: Callable[[list[int]], LabeledImages]
    if isinstance(images, ShardedImages):
        select, count, unit, smallest = images.select_shards, len(images.shards), "shards", 1
        if count < 2:
            raise InputError(f"{source} must have at least 2 shards to hold some out, got {count}")
    else:
        select, labels, count, unit = images.select, images.labels, len(images), "images"
        by_class = Counter(labels)
        smallest = len(by_class)  # at least one per class in both sets
        if rare := [images.classes[label] for label, number in sorted(by_class.items()) if number < 2]:
            raise InputError(f"{source} must have at least 2 images per class to be divided, got 1 of '{rare[0]}'")
    number = size if isinstance(size, int) else min(max(math.ceil(size * count), smallest), count - smallest)
    subsets = train_test_split(range(count), test_size=number, random_state=seed, stratify=labels)
    train, held_out = (select(sorted(subset)) for subset in subsets)
    return train, held_out, f"{source}, {number} of {count} {unit} held out with seed {seed}"


def remap_labels(images: LabeledImages, classes: Sequence[str]) -> LabeledImages:
    """Convert the labels of a set to those that index `classes`, by class name.

    Raises InputError if an image has a class that is not in `classes`.
    """
    if images.classes == tuple(classes):
        return images
    indices = {nfc(name): index for index, name in enumerate(classes)}
    names = [images.classes[label] for label in images.labels]
    if unknown := sorted({name for name in names if nfc(name) not in indices}):
        raise InputError(
            f"classes of {images.source} must be among the {len(classes)} of training "
            f"({first_few(map(repr, classes))}), got {first_few(map(repr, unknown))}"
        )
    labels = [indices[nfc(name)] for name in names]
    return ImageFiles([images.file(index) for index in range(len(images))], labels, tuple(classes), images.source)
