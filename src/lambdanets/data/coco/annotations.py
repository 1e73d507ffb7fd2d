"""Reads the instances of a COCO file, and checks them."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lambdanets.data.coco.findings import Dropped, Findings, first
from lambdanets.data.coco.segmentations import (
    MOST_PIXELS,
    Patch,
    Segmentation,
    area_of,
    as_in_file,
    mask_of,
    pack_polygons,
    patch_of,
    read_segmentation,
)
from lambdanets.errors import InputError, one_line
from lambdanets.files import open_regular


@dataclass(frozen=True, slots=True)
class Category:
    """A class of objects: its id in the file and its name."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Object:
    """An annotated object of an image.

    id: the annotation's; category: number of the category, from 0, in order of the ids; box: x1, y1, x2, y2 in pixels,
    within the image; area: in pixels, as in the file, or that of the mask where the file has none; crowd: whether it is
    a region of many objects, which is no target to learn, and counts against no detection in it.
    """

    id: int
    category: int
    box: tuple[float, float, float, float]
    area: float
    crowd: bool
    segmentation: Segmentation


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """An image as its annotations know it: id, file name, sides in pixels, objects in the file's order."""

    id: int
    name: str
    height: int
    width: int
    objects: tuple[Object, ...]


@dataclass(frozen=True)
class Annotations:
    """What is kept of a file: categories and images in order of their ids, and what was left out."""

    categories: tuple[Category, ...]
    images: tuple[AnnotatedImage, ...]
    findings: Findings

    def to_coco(self, indices: Iterable[int] | None = None) -> dict[str, Any]:
        """The instances of some images by number, or of all, as COCO's evaluation takes them; ids are the file's.

        With crowd regions; boxes are the clipped ones.
        """
        chosen = self.images if indices is None else [self.images[index] for index in indices]
        return {
            "images": [
                {"id": image.id, "file_name": image.name, "height": image.height, "width": image.width}
                for image in chosen
            ],
            "annotations": [self._to_coco(each, image) for image in chosen for each in image.objects],
            "categories": [{"id": category.id, "name": category.name} for category in self.categories],
        }

    def _to_coco(self, each: Object, image: AnnotatedImage) -> dict[str, Any]:
        left, top, right, bottom = each.box
        return {
            "id": each.id,
            "image_id": image.id,
            "category_id": self.categories[each.category].id,
            "bbox": [left, top, right - left, bottom - top],
            "area": each.area,
            "iscrowd": int(each.crowd),
            "segmentation": as_in_file(each.segmentation, image.height, image.width),
        }


def decoded(each: Object, height: int, width: int) -> np.ndarray:
    """The mask of an object in an image of that size, uint8 (height, width), 1 inside.

    It may be empty where a polygon holds no pixel's centre.
    """
    return mask_of(each.segmentation, height, width)


def decode_cropped_mask(each: Object, height: int, width: int) -> Patch:
    """The mask of an object in an image of that size, where there is any of it."""
    return patch_of(each.segmentation, height, width)


def read_annotations(path: Path) -> Annotations:
    """Read a file of COCO instances: images, annotations and categories; no image file is read.

    Ids may be any whole numbers; iscrowd, area and segmentation may be missing. Annotations that cannot be used are
    left out and counted, as `findings` tells. Raises InputError for a file that is not whole or not of this format, for
    ids and file names that two have, and for one without images or categories.

    Time and memory grow with the file: a made one with a tenth of the objects of COCO's training set (86,000 in 9,500
    images) took 2.5 s and 160 MB on a core of a virtual machine; 80 MB are kept.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"expected COCO instances in '{path}', but: {error.strerror or error}") from error
    return parse_annotations(content, path)


def parse_annotations(file: bytes, path: Path) -> Annotations:
    """`read_annotations` of a file that is in memory; path names it in errors."""
    content = _read(file, path)
    for section, rules in _RULES.items():
        _check(path, section, content[section], rules)
    for section, key in (("categories", "id"), ("images", "id"), ("images", "file_name")):
        if repeated := _repeated(entry[key] for entry in content[section]):
            _refuse(path, f"two of its {section} have the same {key} ({len(repeated)}: {first(repeated)})")
    if vast := [entry["id"] for entry in content["images"] if entry["height"] * entry["width"] >= MOST_PIXELS]:
        _refuse(path, f"there are images of {MOST_PIXELS:,} pixels or more ({len(vast)}: id {first(vast)})")
    known = sorted((entry["id"], entry["name"]) for entry in content["categories"])
    categories = tuple(Category(number, name) for number, name in known)
    reader = _Reader(categories, content["images"])
    for entry in content["annotations"]:
        reader.add(entry)
    images = tuple(
        AnnotatedImage(entry["id"], entry["file_name"], *reader.sizes[entry["id"]], tuple(reader.objects[entry["id"]]))
        for entry in sorted(content["images"], key=lambda entry: entry["id"])
    )
    return Annotations(categories, images, Findings() | reader.found)


class _Reader:
    """Takes the annotations of a file one by one, and keeps the good ones by their image."""

    def __init__(self, categories: Sequence[Category], images: Sequence[dict[str, Any]]) -> None:
        self.sizes = {entry["id"]: (entry["height"], entry["width"]) for entry in images}
        self.objects: dict[int, list[Object]] = {entry["id"]: [] for entry in images}
        self.found: defaultdict[str, list[int]] = defaultdict(list)
        self._numbers = {category.id: number for number, category in enumerate(categories)}
        self._seen: set[int] = set()

    def add(self, entry: dict[str, Any]) -> None:
        try:
            found = self._object(entry)
        except Dropped as dropped:
            self.found[dropped.kind].append(entry["id"])
        else:
            self.objects[entry["image_id"]].append(found)

    def _object(self, entry: dict[str, Any]) -> Object:
        number = entry["id"]
        if number in self._seen:
            raise Dropped("duplicate_id")
        self._seen.add(number)
        if entry["image_id"] not in self.sizes:
            raise Dropped("unknown_image")
        category = self._numbers.get(entry["category_id"])
        if category is None:
            raise Dropped("unknown_category")
        height, width = self.sizes[entry["image_id"]]
        x, y, across, down = map(float, entry["bbox"])
        area = entry.get("area")
        if across <= 0 or down <= 0 or (area is not None and area <= 0):
            raise Dropped("no_extent")
        box = (max(x, 0.0), max(y, 0.0), min(x + across, float(width)), min(y + down, float(height)))
        if box[0] >= box[2] or box[1] >= box[3]:
            raise Dropped("outside")
        segmentation = read_segmentation(entry.get("segmentation"), height, width)
        if area is None:
            area = area_of(segmentation, height, width)
            if not area:
                raise Dropped("no_mask")
        if isinstance(segmentation, tuple) and len(segmentation) < len(entry["segmentation"]):
            self.found["shortened_polygon"].append(number)
        if max(-x, -y, x + across - width, y + down - height) > 1:
            self.found["clipped"].append(number)
        return Object(number, category, box, float(area), bool(entry.get("iscrowd")), segmentation)


def _read(file: bytes, path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(file.decode("utf-8-sig"), object_hook=pack_polygons, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        _refuse(path, "it is not UTF-8")
    except (ValueError, RecursionError) as error:
        _refuse(path, f"it is no whole JSON: {one_line(error)}")
    if not isinstance(content, dict):
        _refuse(path, "it is no object of JSON with images, annotations and categories")
    for section in _RULES:
        if not isinstance(content.get(section), list):
            _refuse(path, f"it has no list of {section}")
        if section != "annotations" and not content[section]:
            _refuse(path, f"it has no {section}")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _refuse(path: Path, what: str) -> NoReturn:
    raise InputError(f"expected COCO instances in '{path}', but {what}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e300 < value < 1e300


def _is_box(value: Any) -> bool:
    return type(value) is list and len(value) == 4 and all(map(_is_number, value))


def _is_side(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


_Rule = tuple[str, Callable[[Any], bool], str]
_ID: _Rule = ("id", lambda value: type(value) is int, "a whole number")
_RULES: dict[str, tuple[_Rule, ...]] = {
    "categories": (_ID, ("name", _is_text, "a text")),
    "images": (
        _ID,
        ("file_name", _is_text, "a text"),
        ("height", _is_side, "a whole number from 1"),
        ("width", _is_side, "a whole number from 1"),
    ),
    "annotations": (
        _ID,
        ("image_id", _ID[1], _ID[2]),
        ("category_id", _ID[1], _ID[2]),
        ("bbox", _is_box, "four finite numbers"),
        ("area", lambda value: value is None or _is_number(value), "a finite number"),
        ("iscrowd", lambda value: value in (0, 1), "0 or 1"),
    ),
}
_MAY_BE_MISSING = {"area", "iscrowd"}


def _check(path: Path, section: str, entries: list[Any], rules: Sequence[_Rule]) -> None:
    """Raise InputError where entries of a section are not what COCO's format says, for the first kind of fault."""
    whose: defaultdict[str, list[str]] = defaultdict(list)
    for place, entry in enumerate(entries):
        if fault := _fault(entry, rules):
            known = isinstance(entry, dict) and type(entry.get("id")) is int
            whose[fault].append(f"id {entry['id']}" if known else f"{section}[{place}]")
    for fault, labels in whose.items():
        _refuse(path, f"there are {section} {fault} ({len(labels)}: {first(labels)})")


def _fault(entry: Any, rules: Sequence[_Rule]) -> str | None:
    if not isinstance(entry, dict):
        return "that are no objects of JSON"
    for key, is_right, expected in rules:
        if key not in entry:
            if key not in _MAY_BE_MISSING:
                return f"without {key}"
        elif not is_right(entry[key]):
            return f"whose {key} is not {expected}"
    return None


def _repeated(values: Iterable[Hashable]) -> list[Hashable]:
    return [value for value, count in Counter(values).items() if count > 1]
