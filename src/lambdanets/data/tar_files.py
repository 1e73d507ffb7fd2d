"""Labeled images in a tar file with one folder per class."""

import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from PIL import Image

from lambdanets.data.image_folders import TEST, TRAIN, VALIDATION, Layout, find_layout, first_few, parse_name
from lambdanets.data.image_search import describe_output, is_image_name
from lambdanets.data.images import read_file, read_image
from lambdanets.data.shards.tar_samples import FileInTar, files_in_tar
from lambdanets.errors import InputError
from lambdanets.folders import is_hidden, is_output


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
    """Find the tar of the validation set in the folder of the training tar, by their names; None if there is none.

    A tar with the name of a validation or test split has none. Raises InputError for two validation sets.
    """
    role, rest = parse_name(train.stem)
    if role in (VALIDATION, TEST):
        return None
    rest = rest if role == TRAIN else ()
    # macOS makes files such as ._val.tar
    files = sorted(file for file in train.parent.iterdir() if not is_hidden(file.name))
    tars = {file: parse_name(file.stem) for file in files if file.suffix.lower() == ".tar"}
    for wanted in (VALIDATION, TEST):
        found = [tar for tar, name in tars.items() if name == (wanted, rest) and tar.is_file()]
        if len(found) > 1:
            raise InputError(f"'{train.parent}' must have one {wanted} tar, got {first_few(tar.name for tar in found)}")
        if found:
            return found[0]
    return None


def read_tar_layout(path: Path) -> Layout:
    """Find the splits and classes in an uncompressed tar, and the members of `TarImages` in each.

    Nested tars count as folders. Raises InputError, also if any of the tars is compressed, damaged or truncated.
    """
    files, left_out = _without_outputs(files_in_tar(path))
    images = [(folder_path, member) for folder_path, member in files if is_image_name(folder_path.name)]
    others = [folder_path for folder_path, _ in files if not is_image_name(folder_path.name)]
    return find_layout(str(path), images, others, left_out)


def _without_outputs(files: list[FileInTar]) -> tuple[list[FileInTar], Counter[str]]:
    """Return the files outside output folders of this package, and the number of images in each of these."""
    names: defaultdict[PurePosixPath, set[str]] = defaultdict(set)
    for path, _ in files:
        for child in (path, *path.parents):
            names[child.parent].add(child.name)
    outputs = {folder for folder, inside in names.items() if folder.name and is_output(inside)}
    kept, left_out = [], Counter[str]()
    for path, member in files:
        output = next((folder for folder in reversed(path.parents) if folder in outputs), None)
        if output is None:
            kept.append((path, member))
        elif is_image_name(path.name):
            left_out[describe_output(output)] += 1
    return kept, left_out
