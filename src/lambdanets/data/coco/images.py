"""Annotated images: a COCO file joined to the images that it tells of, in a folder or a tar."""

import hashlib
import io
import tarfile
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

from PIL import Image

from lambdanets.data.coco.annotations import AnnotatedImage, Annotations, Category, read_annotations
from lambdanets.data.coco.findings import Findings, first
from lambdanets.data.images import UnreadableImage, images_under, read_image
from lambdanets.data.labeled_images import ImageFiles
from lambdanets.data.shards.tar_samples import tar_members
from lambdanets.data.tar_files import TarImages
from lambdanets.errors import InputError, one_line
from lambdanets.files import open_regular, printable_bytes


class Files(Protocol):
    """Where images lie, by number."""

    def file(self, index: int) -> tuple[bytes, str]:
        """The content of one, and its suffix. Raises UnreadableImage."""

    def name(self, index: int) -> str:
        """What a person would call it."""


@dataclass(frozen=True)
class InMemoryFiles:
    """Files by name, those of a set called `source`."""

    contents: Mapping[str, bytes]
    names: Sequence[str]
    source: str

    def file(self, index: int) -> tuple[bytes, str]:
        return self.contents[self.names[index]], PurePosixPath(self.names[index]).suffix

    def name(self, index: int) -> str:
        return f"{self.source}/{self.names[index]}"


@dataclass(frozen=True)
class AnnotatedImages:
    """Images with their objects, in order of the images' ids; `annotations` are theirs.

    places: the number of each among `files`. parent_fingerprint: of images selected from a set, its fingerprint.
    """

    annotations: Annotations
    files: Files
    places: Sequence[int]
    parent_fingerprint: str | None = None

    def __len__(self) -> int:
        return len(self.annotations.images)

    @property
    def categories(self) -> tuple[Category, ...]:
        """The classes of objects; an object's category is the number of one of them."""
        return self.annotations.categories

    @property
    def findings(self) -> Findings:
        """What was left out of the set."""
        return self.annotations.findings

    def name(self, index: int) -> str:
        """What a person would call the image: its path, or the tar's and its name in it."""
        return self.files.name(self.places[index])

    def load(self, index: int) -> tuple[Image.Image, AnnotatedImage]:
        """Decode an image, in mode "L" or "RGB", turned as it was when annotated, and give its objects.

        Raises UnreadableImage, also where it has another size than was annotated.
        """
        known = self.annotations.images[index]
        content = io.BytesIO(self.files.file(self.places[index])[0])
        image = read_image(content, self.name(index), known_size=(known.width, known.height))
        if image.size != (known.width, known.height):
            sizes = f"it is {image.width} x {image.height} pixels and was annotated as {known.width} x {known.height}"
            raise UnreadableImage(self.name(index), sizes)
        return image, known

    def selected(self, indices: Iterable[int]) -> "AnnotatedImages":
        """Some of the images, by their numbers, in that order."""
        numbers = list(indices)
        chosen = replace(self.annotations, images=tuple(self.annotations.images[number] for number in numbers))
        places = [self.places[number] for number in numbers]
        return AnnotatedImages(chosen, self.files, places, self.parent_fingerprint or self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of categories, file names, sizes and objects in hexadecimal digits; no pixels are read."""
        digest = hashlib.sha256()
        for piece in _pieces(self.annotations):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
        return digest.hexdigest()


def open_annotated(annotations: Path, images: Path) -> AnnotatedImages:
    """Join a file of COCO instances to the images in a folder or an uncompressed tar. No image is decoded.

    A file is an image's if its path there is the image's file_name, or one of them is the end of the other, as for
    0001.jpg and train2017/0001.jpg. Images without a file are left out, and counted in `findings`. Raises InputError
    where `read_annotations` does, for a folder or tar that cannot be read, where an image may have several files or
    several images the same, and where none has any.
    """
    read = read_annotations(annotations)
    names = [str(PurePosixPath(image.name)) for image in read.images]
    members: dict[str, tuple[int, int]] = {}
    if images.is_dir():
        wanted = {_composed(PurePosixPath(name).name) for name in names}
        those = images_under(images, lambda name: _composed(name) in wanted)
        paths = [path.relative_to(images).as_posix() for path in those]
    else:
        members = _index(images)
        paths = list(members)
    places = _match(names, paths, images)
    there = [number for number, place in enumerate(places) if place is not None]
    if not there:
        raise InputError(
            f"expected the {len(names)} images of '{annotations}' in '{images}', but none is there, "
            f"such as '{names[0]}'"
        )
    missing = [image for image, place in zip(read.images, places, strict=True) if place is None]
    findings = read.findings | {
        "missing_file": [image.id for image in missing],
        "of_missing_file": [each.id for image in missing for each in image.objects],
    }
    found = [place for place in places if place is not None]
    files: Files
    if members:
        files = TarImages(images, [(place, *members[place]) for place in found], ())
    else:
        files = ImageFiles([images / place for place in found], ())
    kept = tuple(read.images[number] for number in there)
    return AnnotatedImages(replace(read, images=kept, findings=findings), files, range(len(kept)))


def _index(path: Path) -> dict[str, tuple[int, int]]:
    """The first byte and length of each file in a tar, by its name; of several with one name, the last."""
    try:
        with open_regular(path) as file:
            return {
                str(PurePosixPath(member.name)): (member.offset_data, member.size)
                for member in tar_members(file)
                if not member.issparse()
            }
    except (OSError, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"expected a folder or an uncompressed tar of images in '{path}', but: {reason}") from error


def _match(names: Sequence[str], paths: Sequence[str], source: Path) -> list[str | None]:
    """The path of each name: itself, or the one that ends in it, or the longest that it ends in.

    Letters with accents are the same whether written as one character or as several.
    """
    written = {_composed(path): path for path in paths}
    if len(written) == len(paths):
        paths, names = list(written), [_composed(name) for name in names]
    else:  # two that look the same are told apart by how they are written
        written = {path: path for path in paths}
    whole = set(paths)
    ending: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        for tail in _tails(path):
            ending[tail].append(path)
    found: list[str | None] = []
    for name in names:
        candidates = [name] if name in whole else ending.get(name, [])
        if len(candidates) > 1:
            raise InputError(f"expected one file for '{name}' in '{source}', but there are {first(candidates)}")
        found.append(next(iter(candidates), None) or next((tail for tail in _tails(name) if tail in whole), None))
    shared = [path for path, count in Counter(found).items() if path is not None and count > 1]
    if shared:
        rivals = [name for name, path in zip(names, found, strict=True) if path == shared[0]]
        raise InputError(
            f"expected a file for each image in '{source}', but '{shared[0]}' could be any of {first(rivals)}"
        )
    return [None if path is None else written[path] for path in found]


def _composed(name: str) -> str:
    """With each letter and its accents in one character, where Unicode has that."""
    return unicodedata.normalize("NFC", name)


def _tails(path: str) -> Iterator[str]:
    """What a path ends in, in whole parts, from the longest to the file's name."""
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def _pieces(annotations: Annotations) -> Iterator[bytes]:
    yield printable_bytes(repr([(category.id, category.name) for category in annotations.categories]))
    for image in annotations.images:
        yield printable_bytes(image.name)
        yield repr((image.id, image.height, image.width, len(image.objects))).encode()
        for each in image.objects:
            yield repr((each.id, each.category, each.box, each.area, each.crowd)).encode()
            if isinstance(each.segmentation, str):
                yield each.segmentation.encode()
            elif isinstance(each.segmentation, tuple):
                yield from (part.tobytes() for part in each.segmentation)
            else:
                yield each.segmentation.tobytes()
