"""Annotated images: a COCO file with its images in a folder or a tar; and the images and targets of batches.

Images of batches are float32 (3, H, W) in [0, 1], of different sizes. In training, a target is a dict: for detection of
boxes (n, 4) as x1, y1, x2, y2, labels (n,) int64 from 1, and masks (n, H, W) uint8, for segmentation of the semantic
mask (H, W) uint8. In evaluation it is empty.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.coco.annotations import AnnotatedImage, AnnotationProblems, Annotations, read_annotations
from lambdanets.data.coco.segmentations import to_cropped_mask
from lambdanets.data.image_search import list_files
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.labeled_images import ImageFiles, SelectedImages
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc

Target = dict[str, Tensor]
BACKGROUND = 0
IGNORED = 255  # ignore_index of the loss; scores do not count these pixels either
SEMANTIC_MASK = "semantic_mask"  # key in the targets of a batch


@dataclass(frozen=True)
class AnnotatedImages:
    """Images with their annotations, in order of the image ids.

    files: the images in the same order, as a `LabeledImages` whose labels are not used.
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

    def load(self, index: int) -> tuple[Image, AnnotatedImage]:
        """Decode an image (mode "L" or "RGB", in the orientation of its annotations); return it with its annotations.

        Raises UnreadableImage, also if its size is not the size in the annotations.
        """
        annotated = self.annotations.images[index]
        content = io.BytesIO(self.files.file(index))
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


def open_annotated(annotations: Path, images: Path, known: Collection[int] = ()) -> AnnotatedImages:
    """Open COCO instances with their images in a folder or an uncompressed tar. No image is decoded.

    known: as for `read_annotations`.

    A file matches an image if its path equals the image's file_name, or if one of them ends in the other, such as
    0001.jpg and train2017/0001.jpg; backslashes, upper case and percent-encoding may differ. Images without a file are
    dropped, and listed in `problems`. Raises InputError as `read_annotations` does, for a damaged tar, for ambiguous
    matches, and if more than half of the images have no file.
    """
    parsed = read_annotations(annotations, known)
    if not images.exists():
        raise InputError(f"'{images}' must be a folder or an uncompressed tar of images, got none of this name")
    files = {path.as_posix(): file for path, file in list_files(images, accepts=bool)[0]}
    matches = _match([str(PurePosixPath(image.name)) for image in parsed.images], files, images)
    missing = [image for image, path in zip(parsed.images, matches, strict=True) if path is None]
    found = [(image, files[path]) for image, path in zip(parsed.images, matches, strict=True) if path is not None]
    if len(missing) > len(found):  # the folder is of other images
        got = f"{len(found) or 'none'} of them; the first that is missing is '{missing[0].name}'"
        raise InputError(f"'{images}' must contain the {len(matches)} images of '{annotations}', got {got}")
    if missing:
        parsed.problems["images dropped: their files are missing"] = [image.id for image in missing]
    if dropped := [obj.id for image in missing for obj in image.objects]:
        parsed.problems["annotations dropped: the files of their images are missing"] = dropped
    parsed = replace(parsed, images=tuple(image for image, _ in found))
    return AnnotatedImages(parsed, ImageFiles([file for _, file in found], ()), parsed.fingerprint())


def _match(names: Sequence[str], paths: Collection[str], source: Path) -> list[str | None]:
    """Find the path of each name in the annotations; None if there is none. source: for error messages.

    A path matches if it equals the name, else if it ends in the name, else if it is the longest in which the name ends.
    """
    by_suffix: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        for suffix in _path_suffixes(path):
            by_suffix[suffix].append(path)
    matches: list[str | None] = []
    for name in names:
        suffixes = _path_suffixes(name)
        found = [name] if name in paths else next((by_suffix[each] for each in suffixes if each in by_suffix), [])
        if len(found) > 1:
            raise InputError(f"'{source}' must have one file for '{name}', got {first_few(found)}")
        matches.append(found[0] if found else None)
    for match, count in Counter(filter(None, matches)).items():
        if count > 1:
            same = [name for name, path in zip(names, matches, strict=True) if path == match]
            raise InputError(f"'{source}' must have one file per image, got only '{match}' for {first_few(same)}")
    return matches


def _path_suffixes(path: str) -> list[str]:
    """Return the path, the path without its first folder, and so on until only the file name is left.

    They are in a form for all systems: slashes for backslashes, percent-encoding decoded twice, since names of
    downloaded files are encoded, in NFC and lower case.
    """
    parts = nfc(unquote(unquote(path)).replace("\\", "/")).casefold().split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def load_image(images: AnnotatedImages, index: int) -> tuple[Tensor, Target]:
    """Return an image, and an empty target."""
    return image_to_tensor(images.load(index)[0]), {}


def image_to_tensor(image: Image) -> Tensor:
    """Convert an image to a tensor, float32 (3, H, W) in [0, 1]."""
    return transforms.to_dtype(transforms.pil_to_tensor(image.convert("RGB")), torch.float32, scale=True)


def make_semantic_mask(annotated: AnnotatedImage) -> np.ndarray:
    """Return the class of each pixel, uint8 (H, W): 0 for background, i + 1 for category i, or IGNORED.

    Where objects overlap, a pixel belongs to the object with the smallest annotated area or, if areas are equal, to the
    last one in the file. Pixels of crowd regions are IGNORED, except where an object covers them.
    """
    classes = np.full((annotated.height, annotated.width), BACKGROUND, np.uint8)
    for obj in sorted(annotated.objects, key=lambda obj: (not obj.crowd, -obj.area)):
        top, left, mask = to_cropped_mask(obj.segmentation, annotated.height, annotated.width)
        window = classes[top : top + mask.shape[0], left : left + mask.shape[1]]
        window[mask] = IGNORED if obj.crowd else obj.category + 1
    return classes
