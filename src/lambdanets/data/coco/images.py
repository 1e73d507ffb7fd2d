"""Annotated images: a COCO file with its images in a folder or a tar; and the images and targets of batches.

Images of batches are float32 (3, H, W) in [0, 1], of different sizes. In training, a target is a dict: for detection of
boxes (n, 4) as x1, y1, x2, y2, labels (n,) int64 from 1, and masks (n, H, W) uint8, for segmentation of the semantic
mask (H, W) uint8. In evaluation it is empty.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from lambdanets.data.coco.annotations import AnnotatedImage, AnnotatedImages, read_annotations
from lambdanets.data.coco.segmentations import to_cropped_mask
from lambdanets.data.image_search import list_files
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc
from lambdanets.terminal import plural

Target = dict[str, Tensor]
BACKGROUND = 0
IGNORED = 255  # ignore_index of the loss; scores do not count these pixels either
SEMANTIC_MASK = "semantic_mask"  # key in the targets of a batch


def open_annotated(annotations: Path, images: Path, known: Collection[int] = ()) -> AnnotatedImages:
    """Open COCO instances with their images in a folder or an uncompressed tar. No image is decoded.

    known: as for `read_annotations`.

    A file matches an image if its path equals the image's file_name, or if one of them ends in the other, such as
    0001.jpg and train2017/0001.jpg; if none does, if their last parts are equal. Backslashes, upper case and
    percent-encoding may differ. Images without a file are dropped, and listed in `problems`. Raises InputError as
    `read_annotations` does, for a damaged tar, for ambiguous matches, and if more than half of the images have no file.
    """
    parsed = read_annotations(annotations, known)
    if not images.exists():
        raise InputError(f"'{images}' must be a folder or an uncompressed tar of images, got none of this name")
    files = {path.as_posix(): file for path, file in list_files(images, accepts=bool)[0]}
    paths = _match([image.name for image in parsed.images], files, images)
    missing = [image for image in parsed.images if image.name not in paths]
    found = [replace(image, file=files[paths[image.name]]) for image in parsed.images if image.name in paths]
    if len(missing) > len(found):  # the folder is of other images
        got = f"{len(found) or 'none'} of them; the first that is missing is '{missing[0].name}'"
        raise InputError(f"'{images}' must contain the {plural(len(parsed), 'image')} of '{annotations}', got {got}")
    if missing:
        parsed.problems["images dropped: their files are missing"] = [image.id for image in missing]
    if dropped := [obj.id for image in missing for obj in image.objects]:
        parsed.problems["annotations dropped: the files of their images are missing"] = dropped
    return replace(parsed, images=tuple(found))


def _match(names: Sequence[str], paths: Collection[str], source: Path, *, strict: bool = True) -> dict[str, str]:
    """Find the path of each name in the annotations that has one. source: for error messages.

    A path matches if it equals the name, else if it ends in the name, else if it is the longest in which the name ends.
    If no path does, it matches by the last parts that they share: the folder of all images has another name.
    """
    by_suffix: defaultdict[str, list[tuple[bool, str]]] = defaultdict(list)
    for path in paths:
        for start, suffix in enumerate(_path_suffixes(path)):
            by_suffix[suffix].append((start == 0, path))
    matches: dict[str, str] = {}
    names_of: dict[str, str] = {}
    for name in names:
        plain = str(PurePosixPath(name))  # without "./"
        shared = (
            [path for is_whole, path in by_suffix.get(suffix, []) if is_whole or start == 0 or not strict]
            for start, suffix in enumerate(_path_suffixes(plain))
        )
        found = [plain] if plain in paths else next(filter(None, shared), [])
        if len(found) > 1:
            raise InputError(f"'{source}' must have one file for '{name}', got {first_few(found)}")
        for path in found:
            if (other := names_of.setdefault(path, name)) != name:
                raise InputError(f"'{source}' must have one file per image, got only '{path}' for {other}, {name}")
            matches[name] = path
    return matches if matches or not strict else _match(names, paths, source, strict=False)


def _path_suffixes(path: str) -> list[str]:
    """Return the path, the path without its first folder, and so on until only the file name is left.

    They are in a form for all systems: slashes for backslashes and for "?d=" of Label Studio's local files,
    percent-encoding decoded twice, since names of downloaded files are encoded, in NFC and lower case.
    """
    parts = nfc(unquote(unquote(path)).replace("\\", "/").replace("?d=", "/")).casefold().split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def without_target(image: Image, annotated: AnnotatedImage) -> tuple[Tensor, Target]:
    """Return an image as a tensor, and an empty target."""
    return image_to_tensor(image), {}


def image_to_tensor(image: Image | Tensor) -> Tensor:
    """Convert an image to a tensor, float32 (3, H, W) in [0, 1]; a tensor is returned."""
    if isinstance(image, Tensor):
        return image
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
