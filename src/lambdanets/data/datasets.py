"""Opens datasets in any supported format as a training and a validation set."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lambdanets.data.image_folders import ImageSet, find_splits
from lambdanets.data.image_search import list_images
from lambdanets.data.labeled_images import ImageArray, ImageFiles, LabeledImages, SelectedImages
from lambdanets.data.shards import ShardedImages, is_sharded, open_shards
from lambdanets.data.tars import find_validation_tar, open_tar
from lambdanets.data.timm_sets import is_timm_name, open_timm_dataset
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc
from lambdanets.records import Seed, ValidationShare, check


@dataclass(frozen=True)
class Splits:
    """A training and a validation set with the same class indices.

    source: the dataset, for messages.
    test: after `hold_out`, the original validation set. The final accuracy is measured on it, because the held-out
        images are used to select the weights.
    left_out: number of files that are not used, by reason.
    is_drawn: whether the images of `evaluated` were held out, because the set has no validation set.
    """

    train: LabeledImages
    validation: LabeledImages
    classes: tuple[str, ...]
    source: str
    test: LabeledImages | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    is_drawn: bool = False

    @property
    def evaluated(self) -> LabeledImages:
        """The images on which the final accuracy is measured."""
        return self.validation if self.test is None else self.test

    @property
    def fingerprint(self) -> str:
        """A hash of the classes and of all file names and labels."""
        return _fingerprint(self.classes, self.train, self.validation, *filter(None, [self.test]))

    @property
    def held_out(self) -> str:
        """A hash of the classes, file names and labels of held-out images; "" if none were drawn."""
        return _fingerprint(self.classes, self.evaluated) if self.is_drawn else ""


def _fingerprint(classes: tuple[str, ...], *sets: LabeledImages) -> str:
    """Hash classes and all file names and labels, or the shards' hashes. Reads no images."""
    digest = hashlib.sha256(repr(classes).encode())
    for images in sets:
        if isinstance(images, ShardedImages):
            digest.update(images.fingerprint.encode())
            continue
        for index, label in enumerate(images.labels):
            digest.update(f"{Path(images.name(index)).name!r} {label}\n".encode())
    return digest.hexdigest()


def open_splits(data: str, *, root: str | None = None, validation_share: float = 0.2, seed: int = 0) -> Splits:
    """Open a dataset as a training and a validation set.

    data: one of
      - "digits": scikit-learn's 1,797 gray images of 8 x 8 pixels;
      - a folder with one sub-folder per class, or with class folders in a training and a validation or test split, or
        with splits in each class folder (see `find_splits`); images outside class folders are left out;
      - a tar file of such folders; if it has no splits, a tar in the same folder whose name is that of a validation or
        test split, such as `val.tar`, is the validation set;
      - shards written by `lambdanets shard`: a folder with shards.json, or its URL (see `shards.py`);
      - a name with one of timm's prefixes "torch/" or "hfds/", such as "torch/mnist".
    root: the folder of a dataset with a timm prefix.
    validation_share: fraction of the images that are held out for validation if the set has no validation set. They
        are stratified by class and drawn with `seed`, independently of the order in the file system. For shards, the
        fraction of the shards.

    Images are decoded only for sets without random access. Raises InputError for a dataset that is missing, damaged,
    empty or has only one class, and for a validation class that training does not have. If images are held out, raises
    InputError for a class with 1 image or a set with 1 shard.
    """
    check("validation_share", validation_share, ValidationShare)
    check("seed", seed, Seed)
    train, validation = _open(data, root)
    _check_classes(train)
    if validation is None:
        return _hold_out(train, validation_share, seed)
    if not len(validation.images):
        raise InputError(f"{validation.source} must have images, got none")
    images = remap_labels(validation.images, validation.classes, train.classes, validation.source)
    source = f"{train.source} and {validation.source}"
    return Splits(train.images, images, train.classes, source, left_out=_sum_left_out(train, validation))


def open_evaluation_images(data: str, root: str | None = None) -> ImageSet:
    """Open the validation set of a dataset or, if it has none, all its images.

    data, root: as for `open_splits`. Raises InputError for a dataset that is missing, damaged, empty or unlabeled.
    """
    train, validation = _open(data, root)
    split = train if validation is None else validation
    if not split.classes or not len(split.images):
        raise InputError(f"{split.source} must have {'images' if split.classes else 'labels'}, got none")
    source = split.source if validation is not None else f"all of {split.source}, which has no validation split"
    return replace(split, source=source, left_out=_sum_left_out(train, validation))


def hold_out(splits: Splits, fraction: float, seed: int) -> Splits:
    """Hold out a fraction of the training images for validation; the original validation set becomes the test set.

    For sets in shards, whole shards are held out. A fraction of 0 returns the splits unchanged. Raises InputError for a
    class with 1 image and for a set with 1 shard.
    """
    if not fraction:
        return splits
    new_splits = _hold_out(ImageSet(splits.train, splits.classes, splits.source), fraction, seed)
    return replace(new_splits, test=splits.validation, left_out=splits.left_out, is_drawn=splits.is_drawn)


def subset(splits: Splits, count: int | None, seed: int) -> Splits:
    """Return splits with `count` training images, stratified by class and drawn with `seed`; with all if None.

    Raises InputError for a count above the number of images or below the number of classes, and for sets in shards.
    """
    available = len(splits.train)
    if count is None or count == available:
        return splits
    if isinstance(splits.train, ShardedImages):
        raise InputError(f"training_images must be None for shards ({splits.source}), got {count}")
    classes = len(set(splits.train.labels))
    if not classes <= count <= available - classes:
        raise InputError(
            f"training_images must be {available}, or {classes} (one per class) to {available - classes}, got {count}"
        )
    kept, _ = _divide(ImageSet(splits.train, splits.classes, splits.source), seed, train_size=count)
    source = f"{splits.source}, {count} of {available} training images drawn with seed {seed}"
    return replace(splits, train=kept, source=source)


def _open(data: str, root: str | None) -> tuple[ImageSet, ImageSet | None]:
    """Open a dataset as training and validation set; None if it has no validation set."""
    if root is not None and not is_timm_name(data):
        raise InputError(f"data_root is for timm datasets such as 'torch/cifar10', got data '{data}'")
    if data == "digits":
        return _digits(), None
    if is_timm_name(data):
        (train, train_classes), (validation, classes) = open_timm_dataset(data, root)
        return ImageSet(train, train_classes, f"{data} (train)"), ImageSet(validation, classes, "its validation split")
    if is_sharded(data):
        shards, classes = open_shards(data)
        sets = {split: ImageSet(images, classes, f"the {split} shards of '{data}'") for split, images in shards.items()}
        return sets["train"], sets.get("validation")
    try:
        return _open_files(data, Path(data))
    except OSError as error:
        raise InputError(f"cannot read the dataset '{data}': {error.strerror or error}") from error


def _open_files(data: str, path: Path) -> tuple[ImageSet, ImageSet | None]:
    if not data or not path.exists():
        raise InputError(
            f"data must be 'digits', a folder, a .tar or a timm dataset, got '{data}', which does not exist"
        )
    if path.is_dir():
        found = list_images(path)
        files = [(file.relative_to(path), file) for file in found.paths]
        return find_splits(str(path), files, found.left_out, ImageFiles)
    if path.suffix.lower() != ".tar":
        raise InputError(f"data must be a folder of images or an uncompressed .tar, got '{data}'")
    train, validation = open_tar(path)
    if validation is None and (tar := find_validation_tar(path)) is not None:
        validation, inner = open_tar(tar)
        if inner is not None:
            raise InputError(f"'{tar}' must be the validation set of '{path}', got splits in it; move one of them away")
    return train, validation


def _sum_left_out(*sets: ImageSet | None) -> Counter[str]:
    return sum((Counter(each.left_out) for each in sets if each is not None), Counter())


def _digits() -> ImageSet:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    images = ImageArray(pixels, digits.target.tolist(), "digits")
    return ImageSet(images, tuple("0123456789"), "scikit-learn's digits")


def _check_classes(train: ImageSet) -> None:
    if not len(train.images):
        raise InputError(f"{train.source} must have images, got none")
    is_used = isinstance(train.images, ShardedImages)  # to find the classes that are used, all shards would be read
    present = train.classes if is_used else [train.classes[label] for label in sorted(set(train.images.labels))]
    if len(present) < 2:
        got = f"only '{present[0]}'" if present else "images without classes"
        raise InputError(f"{train.source} must have images of at least 2 classes, got {got}")


def _divide(split: ImageSet, seed: int, **sizes: int) -> tuple[LabeledImages, LabeledImages]:
    """Divide images at random, stratified by class, or whole shards. sizes: train_size or test_size of scikit-learn."""
    from sklearn.model_selection import train_test_split

    images = split.images
    if isinstance(images, ShardedImages):
        if (count := len(images.shard_sizes)) < 2:
            raise InputError(f"{split.source} must have at least 2 shards to hold some out, got {count}")
        first, second = train_test_split(range(count), random_state=seed, **sizes)
        return images.select_shards(sorted(first)), images.select_shards(sorted(second))
    labels = [int(label) for label in images.labels]
    for label, count in sorted(Counter(labels).items()):
        if count < 2:
            name = split.classes[label]
            raise InputError(f"{split.source} must have at least 2 images per class to be divided, got 1 of '{name}'")
    first, second = map(sorted, train_test_split(range(len(labels)), random_state=seed, stratify=labels, **sizes))
    return _select(images, first, labels), _select(images, second, labels)


def _select(images: LabeledImages, indices: Sequence[int], labels: Sequence[int]) -> SelectedImages:
    return SelectedImages(images, indices, [labels[index] for index in indices])


def _hold_out(split: ImageSet, fraction: float, seed: int) -> Splits:
    images = split.images
    if isinstance(images, ShardedImages):
        count, unit, smallest = len(images.shard_sizes), "shards", 1
    else:
        count, unit, smallest = len(images), "images", len(set(images.labels))  # at least one per class in both sets
    num_held_out = min(max(math.ceil(fraction * count), smallest), count - smallest)
    train, validation = _divide(split, seed, test_size=num_held_out)
    source = f"{split.source}, {num_held_out} of {count} {unit} held out with seed {seed}"
    return Splits(train, validation, split.classes, source, left_out=split.left_out, is_drawn=True)


def remap_labels(images: LabeledImages, classes: Sequence[str], target: Sequence[str], source: str) -> LabeledImages:
    """Convert labels that index `classes` to labels that index `target`, by class name.

    Raises InputError, which names `source`, if an image has a class that is not in `target`.
    """
    if tuple(classes) == tuple(target):
        return images
    indices = {nfc(name): index for index, name in enumerate(target)}
    used = {classes[label] for label in images.labels}
    unknown = sorted(name for name in used if nfc(name) not in indices)
    if unknown:
        raise InputError(
            f"classes of {source} must be among the {len(target)} of training "
            f"({first_few(map(repr, target))}), got {first_few(map(repr, unknown))}"
        )
    labels = [indices[nfc(classes[label])] for label in images.labels]
    return SelectedImages(images, range(len(images)), labels)
