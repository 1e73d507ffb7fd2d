"""Data sets that timm knows by a prefix, such as "torch/cifar10" or "hfds/owner/name"."""

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.images import UnreadableImage, read_image, to_gray_or_rgb
from lambdanets.data.labeled_images import LabeledImages, NamedByIndex
from lambdanets.data.shards.tar_samples import names_in_tar
from lambdanets.errors import InputError, one_line

_PREFIXES = ("torch", "hfds", "hfids", "tfds", "wds")


@dataclass(frozen=True)
class IndexedImages(NamedByIndex):
    """Images of a torchvision data set, which gives (image, label) for a number."""

    dataset: Any
    labels: Sequence[int]
    source: str

    def load(self, index: int) -> tuple[Image.Image, int]:
        try:
            return to_gray_or_rgb(self.dataset[index][0]), self.labels[index]
        except UnreadableImage:
            raise
        except Exception as error:  # a data set of any kind may fail in any way over a damaged file
            raise UnreadableImage(self.name(index), one_line(error)) from error


@dataclass(frozen=True)
class StreamedImages(NamedByIndex):
    """Images of a timm reader, which gives (binary file, label) for a number."""

    reader: Any
    labels: Sequence[int]
    source: str

    def load(self, index: int) -> tuple[Image.Image, int]:
        try:
            stream, _ = self.reader[index]
        except Exception as error:  # as above
            raise UnreadableImage(self.name(index), one_line(error)) from error
        with stream:
            return read_image(stream, self.name(index)), self.labels[index]


@dataclass(frozen=True)
class EncodedImages(NamedByIndex):
    """Images kept in memory as the bytes of PNG files."""

    files: Sequence[bytes]
    labels: Sequence[int]
    source: str

    def load(self, index: int) -> tuple[Image.Image, int]:
        return read_image(io.BytesIO(self.files[index]), self.name(index)), self.labels[index]

    def file(self, index: int) -> tuple[bytes, str]:
        return self.files[index], ".png"


def is_timm_name(data: str) -> bool:
    """Whether `data` begins with one of timm's data-set prefixes (in whatever case) and a slash."""
    prefix, slash, _ = data.partition("/")
    return bool(slash) and prefix.lower() in _PREFIXES


def read_timm_set(data: str, root: str | None) -> list[tuple[LabeledImages, tuple[str, ...]]]:
    """Open a data set's train and validation splits ("test" where it has no "validation"), with their class names.

    `root` is the folder it is kept in; nothing is downloaded for "torch/". Sets without random access ("hfids/",
    "tfds/", "wds/") are read through once and kept in memory as PNG. Raises InputError with timm's reason.
    """
    prefix, _, name = data.partition("/")
    if prefix.lower() in ("torch", "wds") and root is None:
        raise InputError(f"expected data_root, the folder that holds '{data}', but came none")
    if prefix.lower() == "torch" and name.lower() in ("folder", "image_folder"):  # timm may give one folder twice
        raise InputError(f"expected the path of the folder itself in place of '{data}'")
    if prefix.lower() == "wds" and root is not None:
        for path in sorted(Path(root).rglob("*.tar")):
            names_in_tar(path)  # webdataset takes a tar that is cut within a header for a whole one
    train = _read_split(data, root, "train")
    try:
        return [train, _read_split(data, root, "validation")]
    except InputError as error:
        try:
            return [train, _read_split(data, root, "test")]
        except InputError:
            raise error from None


def _read_split(data: str, root: str | None, split: str) -> tuple[LabeledImages, tuple[str, ...]]:
    dataset = create_timm_dataset(data, root, split)
    source = f"{data}/{split}"
    reader = getattr(dataset, "reader", None)
    if reader is None:
        if hasattr(dataset, "loader"):
            dataset.loader = read_image  # torchvision's own clips 16-bit images and ignores the EXIF orientation
        if not hasattr(dataset, "targets"):
            raise InputError(f"expected a data set with a list of labels in '{source}', but torchvision gives it none")
        labels = integer_labels(dataset.targets, source)
        return IndexedImages(dataset, labels, source), _torchvision_classes(dataset, labels)
    if hasattr(reader, "__getitem__"):
        labels = integer_labels(reader.iter_targets(), source)
        return StreamedImages(reader, labels, source), class_names(reader.class_to_idx, labels)
    files, labels = _read_through(dataset, source)
    return EncodedImages(files, labels, source), class_names(getattr(reader, "class_to_idx", None) or {}, labels)


def create_timm_dataset(name: str, root: str | None, split: str, **options: Any) -> Any:
    """Call timm's create_dataset; whatever it raises becomes an InputError with its reason."""
    import timm.data

    printed = io.StringIO()
    try:
        # an empty mode keeps the image's own, which read_image turns into 8 bits
        with contextlib.redirect_stdout(printed):  # where a package is missing, timm prints which
            return timm.data.create_dataset(name, root=root, split=split, input_img_mode="", **options)
    except Exception as error:  # the readers raise whatever their libraries do
        what = f"'{name}' (split '{split}')" if name else f"'{root}'"
        reason = "; ".join(dict.fromkeys([one_line(error), *printed.getvalue().rstrip(".\n").splitlines()]))
        raise InputError(f"expected {what} to be a data set that timm can open, but: {reason}") from error


def _read_through(dataset: Iterable[tuple[Any, Any]], source: str) -> tuple[list[bytes], list[int]]:
    files: list[bytes] = []
    labels: list[Any] = []
    try:
        for image, label in dataset:
            if isinstance(image, np.ndarray):  # "tfds/" leaves the making of an image to the mode that is not set
                image = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
            buffer = io.BytesIO()
            to_gray_or_rgb(image).save(buffer, "PNG")
            files.append(buffer.getvalue())
            labels.append(label)
    except Exception as error:  # the readers raise whatever their libraries do
        raise InputError(
            f"expected to read '{source}' through, but after {len(files)} images: {one_line(error)}"
        ) from error
    return files, integer_labels(labels, source)


def integer_labels(labels: Iterable[Any], source: str) -> list[int]:
    """Labels as whole numbers from 0. Raises InputError for other labels and for negative ones."""
    try:
        whole = [int(label) for label in labels]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"expected one class number an image in '{source}', but: {one_line(error)}") from error
    if whole and min(whole) < 0:
        raise InputError(f"expected class numbers from 0 in '{source}', but came {min(whole)}")
    return whole


def class_names(class_to_idx: Mapping[Any, int], labels: Sequence[int]) -> tuple[str, ...]:
    """A name for every class number in either argument; a number without a name is its own."""
    names = {number: str(name) for name, number in class_to_idx.items()}
    return tuple(names.get(number, str(number)) for number in range(max([-1, *names, *labels]) + 1))


def _torchvision_classes(dataset: Any, labels: Sequence[int]) -> tuple[str, ...]:
    names = getattr(dataset, "classes", ())
    whole_names = [name if isinstance(name, str) else ", ".join(name) for name in names]  # ImageNet gives synonyms
    return tuple(whole_names) + tuple(str(number) for number in range(len(names), max([-1, *labels]) + 1))
