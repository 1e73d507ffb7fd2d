"""Labeled images in a tar file with one folder per class."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from PIL import Image

from lambdanets.data.image_folders import VALIDATION_NAMES
from lambdanets.data.images import read_file, read_image
from lambdanets.data.shards.tar_samples import names_in_tar
from lambdanets.data.timm_sets import class_names, create_timm_dataset, integer_labels
from lambdanets.errors import InputError

_VALIDATION_TARS = ("val.tar", "validation.tar", "test.tar")


@dataclass(frozen=True)
class TarImages:
    """Images in one tar file. members: name, offset and length in bytes of each image.

    The file is opened for each image, because forked workers would share the position of an open file.
    """

    path: Path
    members: Sequence[tuple[str, int, int]]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.members)

    def load(self, index: int) -> tuple[Image.Image, int]:
        return read_image(io.BytesIO(self.file(index)[0]), self.name(index)), self.labels[index]

    def file(self, index: int) -> tuple[bytes, str]:
        name, start, length = self.members[index]
        return read_file(self.path, start, length), Path(name).suffix.lower()

    def name(self, index: int) -> str:
        return f"{self.path}/{self.members[index][0]}"


def find_validation_tar(train: Path) -> Path | None:
    """Find the tar of the validation set in the folder of the training tar; None if there is none.

    A tar with the name of a validation set has none.
    """
    if train.name in _VALIDATION_TARS:
        return None
    siblings = (train.with_name(name) for name in _VALIDATION_TARS)
    return next((tar for tar in siblings if tar.is_file()), None)


def read_tar(path: Path) -> tuple[TarImages, tuple[str, ...]]:
    """Read the image offsets and the class names of an uncompressed tar of PNG and JPEG images, with timm's reader.

    The innermost folder of an image is its class. Nested tars are read too. Raises InputError if any of the tars is
    compressed, damaged or truncated, if there are no images, and if it has a training and a validation split.
    """
    from timm.data import is_img_extension

    if not any(is_img_extension(Path(name).suffix.lower()) for name in names_in_tar(path)):
        raise InputError(f"'{path}' must have PNG or JPEG images, got none")
    # without a cache, which would be a file next to the tar
    reader = create_timm_dataset("", str(path), "train", cache_tarinfo=False).reader
    members = []
    for member, _, nested in reader.samples:  # nested: the nested tar that contains the member, or None
        start = member.offset_data + (nested.offset_data if nested is not None else 0)
        name = f"{nested.name}/{member.name}" if nested is not None else member.name
        members.append((name, start, member.size))
    labels = integer_labels(reader.targets, str(path))
    classes = class_names(reader.class_name_to_idx, labels)
    splits = {PurePosixPath(name).parent.parent.name for name, _, _ in members} & {"train", *VALIDATION_NAMES}
    if "train" in splits and len(splits) > 1:
        raise InputError(f"'{path}' must have one split, got {', '.join(sorted(splits))}; write one tar per split")
    if {"", "."} & set(classes):
        raise InputError(f"'{path}' must have one folder of images per class, got images outside folders")
    return TarImages(path, members, labels), classes
