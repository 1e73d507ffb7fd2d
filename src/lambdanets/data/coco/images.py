"""Annotated images: a COCO file with its images in a folder or a tar."""

import io
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from PIL import Image

from lambdanets.data.coco.annotations import (
    AnnotatedImage,
    AnnotationProblems,
    Annotations,
    read_annotations,
)
from lambdanets.data.image_search import list_images
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.labeled_images import ImageFiles, SelectedImages
from lambdanets.data.tars import TarImages, files_in_tar
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc


@dataclass(frozen=True)
class InMemoryFiles:
    """Encoded images in memory. source: name of the set in messages."""

    contents: Sequence[bytes]
    names: Sequence[str]
    source: str

    def file(self, index: int) -> tuple[bytes, str]:
        return self.contents[index], PurePosixPath(self.names[index]).suffix

    def name(self, index: int) -> str:
        return f"{self.source}/{self.names[index]}"


@dataclass(frozen=True)
class AnnotatedImages:
    """Images with their annotations, in order of the image ids.

    files: the encoded images in the same order: `ImageFiles`, `TarImages` or `InMemoryFiles`.
    fingerprint: that of the annotations; of a subset, that of the whole set.
    stretch: whether images are stretched (see `to_8_bits`).
    """

    annotations: Annotations
    files: Any
    fingerprint: str
    stretch: bool = False

    def __len__(self) -> int:
        return len(self.annotations.images)

    @property
    def problems(self) -> AnnotationProblems:
        """The ids of the annotations and images that were dropped or repaired."""
        return self.annotations.problems

    def name(self, index: int) -> str:
        """The image's name in messages: its path, or the path of the tar and the name in the tar."""
        return self.files.name(index)

    def load(self, index: int) -> tuple[Image.Image, AnnotatedImage]:
        """Decode an image (mode "L" or "RGB", in the orientation of its annotations); return it with its annotations.

        Raises UnreadableImage, also if its size is not the size in the annotations.
        """
        annotated = self.annotations.images[index]
        content = io.BytesIO(self.files.file(index)[0])
        known_size = (annotated.width, annotated.height)
        image = read_image(content, self.name(index), known_size=known_size, stretch=self.stretch)
        if image.size != known_size:
            expected = f"its size must be the annotated {annotated.width} x {annotated.height} pixels"
            raise UnreadableImage(self.name(index), f"{expected}, got {image.width} x {image.height}")
        return image, annotated

    def select(self, indices: Iterable[int]) -> "AnnotatedImages":
        """Return the subset of the images at `indices`, in this order."""
        indices = list(indices)
        annotations = replace(self.annotations, images=tuple(self.annotations.images[index] for index in indices))
        return replace(self, annotations=annotations, files=SelectedImages(self.files, indices, ()))


def open_annotated(annotations: Path, images: Path) -> AnnotatedImages:
    """Open COCO instances with their images in a folder or an uncompressed tar. No image is decoded.

    A file matches an image if its path equals the image's file_name, or if one of them ends in the other, such as
    0001.jpg and train2017/0001.jpg; backslashes, upper case and percent-encoding may differ. Images without a file are
    dropped, and listed in `problems`. Raises InputError as `read_annotations` does, and for a folder or tar that cannot
    be read, for ambiguous matches, and if more than half of the images have no file.
    """
    parsed = read_annotations(annotations)
    if not images.exists():
        raise InputError(f"'{images}' must be a folder or an uncompressed tar of images, got none of this name")
    names = [str(PurePosixPath(image.name)) for image in parsed.images]
    files: dict[str, Any]
    if images.is_dir():
        files = {path.relative_to(images).as_posix(): path for path in list_images(images, accepts=bool).paths}
    else:
        files = {str(path): member for path, member in files_in_tar(images)}
    found = _match(names, files, images)
    kept = tuple(image for image, name in zip(parsed.images, names, strict=True) if name in found)
    missing = [image for image, name in zip(parsed.images, names, strict=True) if name not in found]
    if 2 * len(missing) > len(names):  # the folder is of other images
        raise InputError(
            f"'{images}' must contain the {len(names)} images of '{annotations}', got {len(kept) or 'none'} of them; "
            f"the first that is missing is '{missing[0].name}'"
        )
    found_missing = {
        "images dropped: their files are missing": [image.id for image in missing],
        "annotations dropped: the files of their images are missing": [
            obj.id for image in missing for obj in image.objects
        ],
    }
    parsed.problems.update({problem: ids for problem, ids in found_missing.items() if ids})
    parsed = replace(parsed, images=kept)
    make_images = ImageFiles if images.is_dir() else partial(TarImages, images)
    return AnnotatedImages(parsed, make_images([files[path] for path in found.values()], ()), parsed.fingerprint())


def _match(names: Sequence[str], paths: Collection[str], source: Path) -> dict[str, str]:
    """Find the path of each name in the annotations; names without one are left out. source: for error messages.

    A path matches if it equals the name, else if it ends in the name, else if it is the longest in which the name ends;
    the last two compare names in a form for all systems (see `_portable`).
    """
    exact, by_suffix = set(paths), defaultdict(list)
    for path in paths:
        for suffix in _path_suffixes(path):
            by_suffix[suffix].append(path)
    matches: dict[str, str] = {}
    for name in names:
        suffixes = _path_suffixes(name)
        found = [name] if name in exact else next((by_suffix[each] for each in suffixes if each in by_suffix), [])
        if len(found) > 1:
            raise InputError(f"'{source}' must have one file for '{name}', got {first_few(found)}")
        if found:
            matches[name] = found[0]
    duplicates = [path for path, count in Counter(matches.values()).items() if count > 1]
    if duplicates:
        names_of_path = [name for name, path in matches.items() if path == duplicates[0]]
        raise InputError(
            f"'{source}' must have one file per image, got only '{duplicates[0]}' for {first_few(names_of_path)}"
        )
    return matches


def _portable(name: str) -> str:
    """Return a name with slashes instead of Windows' backslashes, percent-encoding decoded, in NFC and lower case."""
    return nfc(unquote(name).replace("\\", "/")).casefold()


def _path_suffixes(path: str) -> list[str]:
    """Return the path, the path without its first folder, and so on until only the file name is left."""
    parts = _portable(path).split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]
