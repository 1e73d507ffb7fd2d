"""Reads annotations in COCO's instances format: invalid ones are dropped, and boxes that contradict masks replaced."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from lambdanets.data.coco.masks import NO_MASK, AnnotationError, box_and_area, to_rle
from lambdanets.errors import InputError, first_few
from lambdanets.files import encode_utf8, open_regular
from lambdanets.records import adapter, reraise_as_input_error

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels
_Number = Annotated[float, Field(allow_inf_nan=False)]
_MAX_DIFFERENCE = 2  # pixels, from rounding and tracing, between the sides of a box and of its mask
_UNKNOWN_IMAGE = "annotations dropped: no image has their image_id"
_BOX = "boxes replaced by those of the masks, from which they differ"


@dataclass(frozen=True, slots=True)
class Category:
    """A COCO category: its id in the file and its name."""

    id: int
    name: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Object:
    """An annotated object of an image.

    id: id of the annotation.
    category: index of the category, in order of the category ids.
    box: x1, y1, x2, y2 in pixels, clipped to the image.
    area: in pixels, as in the file; if the file has none above 0, the area of the mask.
    crowd: COCO's iscrowd, a region of many objects. It is ignored in training, and detections in it are not false
        positives.
    segmentation: a compressed RLE of the image's size.
    """

    id: int
    category: int
    box: Box
    area: float
    crowd: bool
    segmentation: str


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """The annotations of an image: id, file name, size in pixels, and objects in the order of the file."""

    id: int
    name: Annotated[str, Field(min_length=1, alias="file_name")]
    height: PositiveInt
    width: PositiveInt
    objects: tuple[Object, ...] = ()


class AnnotationProblems(dict[str, list[int]]):
    """The ids of the annotations or images with each problem, which begins with "annotations dropped: " or the like."""

    def lines(self) -> list[str]:
        """Describe each problem with the number of ids and the first ones."""
        return [f"{len(ids)} {problem} (id {first_few(ids)})" for problem, ids in self.items()]

    def counts(self) -> dict[str, int]:
        """The number of ids per problem."""
        return {problem: len(ids) for problem, ids in self.items()}

    @property
    def left_out(self) -> Counter[str]:
        """The number of annotations and images that were dropped."""
        dropped = Counter[str]()
        for problem, ids in self.items():
            kind, is_dropped, _ = problem.partition(" dropped: ")
            if is_dropped:
                dropped[kind] += len(ids)
        return dropped


@dataclass(frozen=True)
class Annotations:
    """The valid annotations of a file, with categories and images in order of their ids.

    problems: the ids of the annotations and images that were dropped or repaired.
    """

    categories: tuple[Category, ...]
    images: tuple[AnnotatedImage, ...]
    problems: AnnotationProblems

    def fingerprint(self) -> str:
        """Return the SHA-256 of categories, file names, image sizes and objects, in hexadecimal digits."""
        digest = hashlib.sha256(encode_utf8(repr(self.categories)))
        for image in self.images:
            digest.update(encode_utf8(repr(image)))
        return digest.hexdigest()

    def to_coco(self, indices: Iterable[int] | None = None) -> dict[str, Any]:
        """Convert the images at `indices` (all by default) and their objects to COCO's instances format.

        The ids are those of the file. Boxes are clipped to the image, and masks are RLEs. Crowd regions are included.
        """
        chosen = self.images if indices is None else [self.images[index] for index in indices]
        sizes = [{"id": each.id, "file_name": each.name, "height": each.height, "width": each.width} for each in chosen]
        annotations = [
            {
                "id": obj.id,
                "image_id": image.id,
                "category_id": self.categories[obj.category].id,
                "bbox": [obj.box[0], obj.box[1], obj.box[2] - obj.box[0], obj.box[3] - obj.box[1]],
                "area": obj.area,
                "iscrowd": int(obj.crowd),
                "segmentation": {"size": [image.height, image.width], "counts": obj.segmentation},
            }
            for image in chosen
            for obj in image.objects
        ]
        return {"images": sizes, "annotations": annotations, "categories": [asdict(each) for each in self.categories]}


@dataclass(slots=True)
class _Entry:
    id: int
    image_id: int
    category_id: int
    bbox: tuple[_Number, _Number, _Number, _Number]
    area: _Number | None = None
    iscrowd: bool = False
    segmentation: Any = None


@dataclass(slots=True)
class _File:
    categories: Annotated[list[Category], Field(min_length=1)]
    images: Annotated[list[AnnotatedImage], Field(min_length=1)]
    annotations: list[_Entry]


def read_annotations(path: Path) -> Annotations:
    """Read a COCO instances file (images, annotations, categories), without opening image files.

    Ids may be any integers; iscrowd and area are optional. Annotations without a valid mask or image are dropped, and
    boxes that contradict their masks are replaced; both are listed in `problems`. Raises InputError for a file that is
    truncated or not in this format, for duplicate ids or file names of images and categories, for a file without images
    or categories, for unknown categories, and if more than half of the annotations are dropped.

    Time is linear in the size of the file, since all masks are decoded once: a tenth of COCO's training set takes 4 s.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"cannot read the COCO instances '{path}': {error.strerror or error}") from error
    return parse_annotations(content, path)


def parse_annotations(encoded: bytes, path: Path) -> Annotations:
    """Parse the content of a COCO instances file, as `read_annotations` does. path: its path, for error messages."""
    with reraise_as_input_error(f"'{path}' must contain COCO instances"):
        decoded = json.loads(encoded.decode("utf-8-sig"))
        # not strict, because pandas writes integers with missing values as floats
        content: _File = adapter(_File).validate_python(decoded)
    for section, key in (("categories", "id"), ("images", "id"), ("images", "name")):
        counts = Counter(getattr(entry, key) for entry in getattr(content, section))
        if duplicates := [value for value, count in counts.items() if count > 1]:
            raise InputError(f"'{path}' must have {section} with different {key}, got several {first_few(duplicates)}")
    categories = sorted(content.categories, key=lambda category: category.id)
    indices = {category.id: index for index, category in enumerate(categories)}
    if unknown := sorted({entry.category_id for entry in content.annotations} - indices.keys()):
        # they are not dropped: if a tool counts from 0 and another from 1, the known ones are wrong, too
        raise InputError(f"'{path}' must have only annotations of its categories, got category_id {first_few(unknown)}")
    images = {image.id: image for image in sorted(content.images, key=lambda image: image.id)}
    objects: dict[int, list[Object]] = {number: [] for number in images}
    problems = AnnotationProblems()
    for entry in content.annotations:
        try:
            obj, problem = _read_object(entry, indices[entry.category_id], images)
            objects[entry.image_id].append(obj)
        except AnnotationError as error:
            problem = str(error)
        if problem:
            problems.setdefault(problem, []).append(entry.id)
    dropped, total = problems.left_out["annotations"], len(content.annotations)
    if 2 * dropped > total:  # the file is not what it seems to be
        got = f"{dropped} of {total} that cannot be used: {'; '.join(problems.lines())}"
        raise InputError(f"'{path}' must have mostly valid annotations, got {got}")
    with_objects = (replace(image, objects=tuple(objects[number])) for number, image in images.items())
    return Annotations(tuple(categories), tuple(with_objects), problems)


def _read_object(entry: _Entry, category: int, images: Mapping[int, AnnotatedImage]) -> tuple[Object, str]:
    """Return an object, and the problem of its box, or "". Raises AnnotationError."""
    if entry.image_id not in images:
        raise AnnotationError(_UNKNOWN_IMAGE)
    height, width = images[entry.image_id].height, images[entry.image_id].width
    segmentation = to_rle(entry.segmentation, height, width)
    mask, mask_area = box_and_area(segmentation, height, width)
    if not mask_area:
        raise AnnotationError(NO_MASK)
    left, top, box_width, box_height = entry.bbox
    box = max(left, 0.0), max(top, 0.0), min(left + box_width, float(width)), min(top + box_height, float(height))
    box, problem = (box, "") if _agree(box, mask) else (mask, _BOX)
    area = entry.area if entry.area and entry.area > 0 else mask_area
    return Object(entry.id, category, box, area, entry.iscrowd, segmentation), problem


def _agree(box: Box, mask: Box) -> bool:
    """Whether two boxes have an IoU of at least a half, or differ by at most 2 pixels."""
    width, height = box[2] - box[0], box[3] - box[1]
    if width <= 0 or height <= 0:
        return False
    shared = max(min(box[2], mask[2]) - max(box[0], mask[0]), 0) * max(min(box[3], mask[3]) - max(box[1], mask[1]), 0)
    areas = width * height + (mask[2] - mask[0]) * (mask[3] - mask[1])
    difference = max(abs(side - mask_side) for side, mask_side in zip(box, mask, strict=True))
    return 3 * shared >= areas or difference <= _MAX_DIFFERENCE
