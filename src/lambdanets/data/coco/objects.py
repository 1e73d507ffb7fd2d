"""Validates the objects of a COCO file, and repairs what can be repaired without doubt."""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lambdanets.data.coco.problems import AnnotationError, AnnotationProblems
from lambdanets.data.coco.segmentations import Segmentation, mask_area, mask_box, parse_segmentation
from lambdanets.errors import InputError

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels
_MAX_DIFFERENCE = 2  # pixels, from rounding and tracing, that are not a problem


@dataclass(frozen=True, slots=True)
class Object:
    """An annotated object of an image.

    id: id of the annotation.
    category: index of the category, in order of the category ids.
    box: x1, y1, x2, y2 in pixels, clipped to the image.
    area: in pixels, as in the file; if the file has none above 0, the area of the mask.
    crowd: COCO's iscrowd, a region of many objects. It is ignored in training, and detections in it are not false
        positives.
    """

    id: int
    category: int
    box: Box
    area: float
    crowd: bool
    segmentation: Segmentation


class _Valid(NamedTuple):
    """An annotation with a valid mask, and the box of the mask."""

    id: int
    entry: dict[str, Any]
    segmentation: Segmentation
    mask: Box


def read_objects(
    entries: Sequence[dict[str, Any]], category_ids: Sequence[int], sizes: Mapping[int, tuple[int, int]], path: Path
) -> tuple[dict[int, list[Object]], AnnotationProblems]:
    """Return the valid objects by image id, and the ids of the annotations that were dropped or repaired.

    entries: the annotations, whose fields have the right types. category_ids: in order. sizes: height and width by
    image id.

    Raises InputError if the coordinates are divided by the image size, if the ids of categories or
    images are shifted, and if more than half of the annotations are invalid, because then the file
    is not what it seems to be.
    """
    problems: defaultdict[str, list[int]] = defaultdict(list)
    indices = {category_id: index for index, category_id in enumerate(category_ids)}
    for key, known in (("category_id", indices.keys()), ("image_id", sizes.keys())):
        _check_not_shifted(key, {entry[key] for entry in entries}, known, path)
    valid = []
    for annotation_id, entry in _with_unique_ids(entries, problems):
        try:
            valid.append(_validate(annotation_id, entry, indices, sizes))
        except AnnotationError as error:
            problems[error.problem].append(entry["id"])
    boxes = [entry["bbox"] for entry in entries]
    if 2 * sum(max(box) <= 1 and any(side % 1 for side in box) for box in boxes) > len(boxes):
        raise InputError(
            f"'{path}' must have coordinates in pixels, got boxes from 0 to 1; multiply x by the width and y by the "
            "height of the image"
        )
    has_corners = _have_corners(valid)
    objects: dict[int, list[Object]] = {image_id: [] for image_id in sizes}
    for annotation_id, entry, segmentation, mask in valid:
        height, width = sizes[entry["image_id"]]
        box = _read_box(entry, has_corners)
        clipped = (max(box[0], 0.0), max(box[1], 0.0), min(box[2], float(width)), min(box[3], float(height)))
        if clipped[0] >= clipped[2] or clipped[1] >= clipped[3] or not _agree(clipped, mask):
            problems["box"].append(entry["id"])
            continue
        if len(entry["segmentation"]) > len(segmentation) and isinstance(segmentation, tuple):
            problems["dropped_polygons"].append(entry["id"])
        if has_corners:
            problems["corners"].append(entry["id"])
        if _distance(box, clipped) > _MAX_DIFFERENCE:
            problems["clipped"].append(entry["id"])
        area = entry.get("area") or 0
        area = float(area if area > 0 else mask_area(segmentation, height, width))
        category = indices[entry["category_id"]]
        obj = Object(annotation_id, category, clipped, area, bool(entry.get("iscrowd")), segmentation)
        objects[entry["image_id"]].append(obj)
    found = AnnotationProblems() | problems
    dropped = found.left_out["annotations"]
    if 2 * dropped > len(entries):
        raise InputError(
            f"'{path}' must have mostly valid annotations, got {dropped} of {len(entries)} that cannot be used: "
            f"{'; '.join(found.lines())}; repair them, or remove them from the file"
        )
    return objects, found


def _check_not_shifted(key: str, used: Set[int], known: Set[int], path: Path) -> None:
    """Raise InputError if some ids are unknown, but none after adding or subtracting 1.

    The known ones are then wrong, too: tools count categories and images from 0 or from 1.
    """
    unknown = used - known
    for shift, advice in ((1, "add 1 to"), (-1, "subtract 1 from")):
        if unknown and {value + shift for value in used} <= known:
            raise InputError(
                f"{key} of the annotations in '{path}' must be among the ids {min(known)} to "
                f"{max(known)} of the file, got {min(used)} to {max(used)}; {advice} each {key}, or "
                f"remove the annotations of {min(unknown)}"
            )


def _with_unique_ids(
    entries: Sequence[dict[str, Any]], problems: defaultdict[str, list[int]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each annotation with an id. One with the id of an earlier one is dropped if it is equal to it."""
    first: dict[int, dict[str, Any]] = {}
    next_id = max((entry["id"] for entry in entries), default=0) + 1
    for entry in entries:
        annotation_id = entry["id"]
        if first.setdefault(annotation_id, entry) is entry:
            yield annotation_id, entry
        elif entry == first[annotation_id]:
            problems["duplicate"].append(annotation_id)
        else:
            problems["new_id"].append(annotation_id)
            yield next_id, entry
            next_id += 1


def _validate(
    annotation_id: int, entry: dict[str, Any], categories: Container[int], sizes: Mapping[int, tuple[int, int]]
) -> _Valid:
    if entry["image_id"] not in sizes:
        raise AnnotationError("unknown_image")
    if entry["category_id"] not in categories:
        raise AnnotationError("unknown_category")
    height, width = sizes[entry["image_id"]]
    segmentation = parse_segmentation(entry.get("segmentation"), height, width)
    mask = mask_box(segmentation, height, width)
    if mask is None:
        raise AnnotationError("no_mask")
    return _Valid(annotation_id, entry, segmentation, mask)


def _read_box(entry: dict[str, Any], has_corners: bool) -> Box:
    x, y, width, height = map(float, entry["bbox"])
    return (x, y, width, height) if has_corners else (x, y, x + width, y + height)


def _have_corners(annotations: Sequence[_Valid]) -> bool:
    """Whether more boxes agree with their masks if they are x1, y1, x2, y2 than if they are x, y, width, height."""
    num_sizes = sum(_agree(_read_box(annotation.entry, False), annotation.mask) for annotation in annotations)
    if num_sizes == len(annotations):
        return False
    return sum(_agree(_read_box(annotation.entry, True), annotation.mask) for annotation in annotations) > num_sizes


def _distance(box: Box, other: Box) -> float:
    """Return the largest distance between a side of a box and the same side of another."""
    return max(abs(side - other_side) for side, other_side in zip(box, other, strict=True))


def _agree(box: Box, mask: Box) -> bool:
    """Whether two boxes differ by at most 2 pixels, or have an IoU of at least a half."""
    if _distance(box, mask) <= _MAX_DIFFERENCE:
        return True
    width, height = min(box[2], mask[2]) - max(box[0], mask[0]), min(box[3], mask[3]) - max(box[1], mask[1])
    if width <= 0 or height <= 0:
        return False
    areas = ((right - left) * (bottom - top) for left, top, right, bottom in (box, mask))
    return 3 * width * height >= sum(areas)
