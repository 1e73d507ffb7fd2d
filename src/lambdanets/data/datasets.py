"""A training and a validation set from whatever names a data set."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lambdanets.bounds import VALIDATION_SHARE, check
from lambdanets.data.idx_files import find_idx_folder, read_idx_set
from lambdanets.data.image_folders import read_class_folders, split_folders
from lambdanets.data.labeled_images import ImageArray, LabeledImages, SelectedImages
from lambdanets.data.order import permutation
from lambdanets.data.shards.images import ShardedImages, is_sharded, open_shards
from lambdanets.data.tar_files import find_validation_tar, read_tar
from lambdanets.data.timm_sets import is_timm_name, read_timm_set
from lambdanets.errors import InputError

__all__ = ["LabeledImages", "Splits", "fewer", "hold_out", "open_splits"]


@dataclass(frozen=True)
class Splits:
    """A training and a validation set with one numbering of their classes; `source` says where they came from.

    test: where part of the training images was held out, so that weights can be chosen by those, the set to measure on.
    """

    train: LabeledImages
    validation: LabeledImages
    classes: tuple[str, ...]
    source: str
    test: LabeledImages | None = None


@dataclass(frozen=True)
class _Part:
    images: LabeledImages
    classes: tuple[str, ...]
    source: str


def open_splits(data: str, *, root: str | None = None, validation_share: float = 0.2, seed: int = 0) -> Splits:
    """Open a data set as a training and a validation set.

    `data` is one of
      - "digits": scikit-learn's 1,797 grey images of 8 x 8 pixels;
      - a folder with a sub-folder of images a class, or with such folders in `train/` and in `val/` (or `valid/`,
        `validation/`, `test/`); images beside the class folders are ignored;
      - a folder of MNIST, FashionMNIST or KMNIST in torchvision's layout (the root, the set's folder or `raw/`);
      - a tar file of PNG and JPEG images with a folder a class; `val.tar`, `validation.tar` or `test.tar` beside it is
        the validation set;
      - images in shards, as `lambdanets shard` writes them: a folder with shards.json, or a URL (`shards.py`);
      - a name with one of timm's prefixes "torch/", "hfds/", "hfids/", "tfds/", "wds/"; `root` is then its folder.
    Where there is no validation set, `validation_share` of the images are held out, stratified by class and drawn with
    `seed`, whatever the file system's order; of images in shards, that share of the shards. No image is decoded, but
    for sets that can only be read through.

    Raises InputError for a data set that is missing, damaged, empty or of one class, for a validation class that
    training lacks, and for a class of fewer than 2 images, or a single shard, when some must be held out.
    """
    check("validation_share", validation_share, float, VALIDATION_SHARE)
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be from 0 to 2**32 - 1, got {seed}")
    if root is not None and not is_timm_name(data):
        raise InputError(f"expected data_root only with a timm data set such as 'torch/cifar10', but '{data}' is none")
    if root == "":  # which libraries take for the current folder
        raise InputError("data_root must be a folder, got ''")
    if is_sharded(data):
        return _open_shards(data, validation_share, seed)
    try:
        train, validation = _open(data, root)
    except OSError as error:
        raise InputError(f"expected to read the data set '{data}', but: {error.strerror or error}") from error
    _check(train)
    if validation is None:
        return _hold_out(train, validation_share, seed)
    return Splits(train.images, _renumber(validation, train), train.classes, f"{train.source} and {validation.source}")


def hold_out(splits: Splits, share: float, seed: int) -> Splits:
    """The splits with a share of the training images as the validation set, and the validation set as the test set.

    Of images in shards, whole shards are held out. Raises InputError for a class of fewer than 2 images, and for a
    single shard. A share of 0 changes nothing.
    """
    if not share:
        return splits
    if isinstance(splits.train, ShardedImages):
        held = _hold_out_shards(splits.train, splits.classes, splits.source, share, seed)
        return replace(held, test=splits.validation)
    held = _hold_out(_Part(splits.train, splits.classes, splits.source), share, seed)
    return replace(held, test=splits.validation)


def fewer(splits: Splits, count: int | None, seed: int) -> Splits:
    """The splits with so many training images, drawn with a seed in the shares of the classes; all if None.

    Raises InputError for more images than there are, for fewer than classes, and for images in shards.
    """
    from sklearn.model_selection import train_test_split

    available = len(splits.train)
    if count is None or count == available:
        return splits
    if isinstance(splits.train, ShardedImages):
        raise InputError(f"training_images works on sets in files only, and {splits.source} are shards, got {count}")
    least = len(set(splits.train.labels))
    if not least <= count <= available - least:
        raise InputError(
            f"training_images must be {available}, or from {least} (one a class) to {available - least}, got {count}"
        )
    labels = splits.train.labels
    kept, _ = train_test_split(range(available), train_size=count, random_state=seed, stratify=labels)
    source = f"{splits.source}, {count} of {available} training images drawn with seed {seed}"
    return replace(splits, train=_select(splits.train, sorted(kept)), source=source)


def _open(data: str, root: str | None) -> tuple[_Part, _Part | None]:
    if data == "digits":
        return _digits(), None
    if is_timm_name(data):
        (train, train_classes), (validation, classes) = read_timm_set(data, root)
        return _Part(train, train_classes, f"{data} (train)"), _Part(validation, classes, "its validation split")
    path = Path(data)
    if not data or not path.exists():
        raise InputError(
            f"data must be 'digits', a folder, a .tar or a timm data set, got '{data}', which is not there"
        )
    if not path.is_dir():
        if path.suffix != ".tar":
            raise InputError(f"data must be a folder of images or an uncompressed .tar, got '{data}'")
        beside = find_validation_tar(path)
        return _Part(*read_tar(path), str(path)), _Part(*read_tar(beside), str(beside)) if beside else None
    raw = find_idx_folder(path)
    if raw is not None:
        train, validation, classes = read_idx_set(raw)
        return _Part(train, classes, f"{raw} (train)"), _Part(validation, classes, "its t10k images")
    folders = split_folders(path)
    if folders is None:
        return _Part(*read_class_folders(path), str(path)), None
    train_part, validation_part = (_Part(*read_class_folders(part), str(part)) if part else None for part in folders)
    assert train_part is not None
    return train_part, validation_part


def _open_shards(data: str, share: float, seed: int) -> Splits:
    parts, classes = open_shards(data)
    if len(classes) < 2:
        came = f"only '{classes[0]}'" if classes else "images without classes"
        raise InputError(f"expected at least 2 classes in the shards of '{data}', but came {came}")
    train, validation = parts["train"], parts.get("validation")
    if validation is None:
        splits = _hold_out_shards(train, classes, data, share, seed)
    else:
        splits = Splits(train, validation, classes, f"{data} (train) and its validation shards")
    for part, images in (("train", splits.train), ("validate", splits.validation)):
        if not len(images):
            raise InputError(f"expected images to {part} on in the shards of '{data}', but there are none")
    return splits


def _hold_out_shards(images: ShardedImages, classes: tuple[str, ...], source: str, share: float, seed: int) -> Splits:
    count = len(images.groups)
    if count < 2:
        raise InputError(f"expected at least 2 shards in '{source}' to hold some out, but came {count}")
    held = min(int(np.ceil(share * count)), count - 1)
    drawn = permutation(count, seed, 0)
    train, validation = (images.of_shards(sorted(part.tolist())) for part in (drawn[held:], drawn[:held]))
    return Splits(train, validation, classes, f"{source}, {held} of {count} shards held out with seed {seed}")


def _digits() -> _Part:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return _Part(ImageArray(pixels, bunch.target.tolist(), "digits"), tuple("0123456789"), "scikit-learn's digits")


def _check(train: _Part) -> None:
    present = sorted(set(train.images.labels))
    if not present:
        raise InputError(f"expected images in {train.source}, but there are none")
    if len(present) < 2:
        name = train.classes[present[0]]
        raise InputError(f"expected at least 2 classes with images in {train.source}, but came only '{name}'")


def _hold_out(part: _Part, share: float, seed: int) -> Splits:
    from sklearn.model_selection import train_test_split

    labels = part.images.labels
    counts = Counter(labels)
    for number, count in sorted(counts.items()):
        if count < 2:
            name = part.classes[number]
            raise InputError(
                f"expected at least 2 images a class in {part.source} to hold some out, but '{name}' has 1"
            )
    # scikit-learn refuses a side with fewer images than classes, which the share alone can ask for in a small set
    held = min(max(int(np.ceil(share * len(labels))), len(counts)), len(labels) - len(counts))
    train, validation = train_test_split(range(len(labels)), test_size=held, random_state=seed, stratify=labels)
    source = f"{part.source}, {held} of {len(labels)} images held out with seed {seed}"
    return Splits(_select(part.images, sorted(train)), _select(part.images, sorted(validation)), part.classes, source)


def _select(images: LabeledImages, indices: Sequence[int]) -> SelectedImages:
    labels = images.labels
    return SelectedImages(images, indices, [labels[index] for index in indices])


def _renumber(validation: _Part, train: _Part) -> LabeledImages:
    """The validation images with training's class numbers, matched by name."""
    if not len(validation.images.labels):
        raise InputError(f"expected images in {validation.source}, but there are none")
    return remap_labels(validation.images, validation.classes, train.classes, validation.source)


def remap_labels(images: LabeledImages, classes: Sequence[str], wanted: Sequence[str], source: str) -> LabeledImages:
    """Images of a set with some classes, by the numbers those have in another list; matched by name.

    Raises InputError, naming `source`, for an image whose class the list lacks.
    """
    if tuple(classes) == tuple(wanted):
        return images
    numbers = {name: number for number, name in enumerate(wanted)}
    missing = sorted({classes[label] for label in images.labels} - numbers.keys())
    if missing:
        raise InputError(
            f"expected in {source} only the {len(wanted)} classes that are known ({_some(wanted)}), "
            f"but came {_some(missing)}"
        )
    return SelectedImages(images, range(len(images)), [numbers[classes[label]] for label in images.labels])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
