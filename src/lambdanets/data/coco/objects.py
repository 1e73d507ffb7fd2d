"""Reads the objects of a COCO file: drops invalid ones, and repairs ids and boxes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lambdanets.data.coco.problems import AnnotationError, AnnotationProblems
from lambdanets.data.coco.segmentations import NO_MASK, Segmentation, compress, masks_api, parse_segmentation
from lambdanets.errors import InputError

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels
_Number = Annotated[float, Field(allow_inf_nan=False)]
_MAX_DIFFERENCE = 2  # pixels, from rounding and tracing, that are not a problem
_DUPLICATE = "annotations dropped: equal to an earlier one"
_NEW_ID = "ids replaced: an earlier annotation has the same id"
_UNKNOWN_IMAGE = "annotations dropped: no image has their image_id"
_UNKNOWN_CATEGORY = "annotations dropped: no category has their category_id"
_BOX = "boxes replaced by those of the masks, from which they differ"
_CLIPPED = "boxes clipped to the image; if they are many, they may be of images of another size"


@dataclass(slots=True)
class Entry:
    """An annotation in a file, checked by pydantic. segmentation: as returned by `pack_polygons`."""

    id: int
    image_id: int
    category_id: int
    bbox: tuple[_Number, _Number, _Number, _Number]
    area: _Number | None = None
    iscrowd: bool = False
    segmentation: Any = None


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


def read_objects(
    entries: Sequence[Entry], category_ids: Sequence[int], sizes: Mapping[int, tuple[int, int]], path: Path
) -> tuple[dict[int, list[Object]], AnnotationProblems]:
    """Return the valid objects by image id, and the ids of the annotations that were dropped or repaired.

    category_ids: in order. sizes: height and width by image id.

    Raises InputError if the coordinates are divided by the image size, if the ids of categories or images are shifted,
    and if more than half of the annotations are invalid, because then the file is not what it seems to be.
    """
    problems: defaultdict[str, list[int]] = defaultdict(list)
    categories = {category_id: index for index, category_id in enumerate(category_ids)}
    _check_not_shifted("category_id", {entry.category_id for entry in entries}, categories.keys(), path)
    _check_not_shifted("image_id", {entry.image_id for entry in entries}, sizes.keys(), path)
    normalized = [entry for entry in entries if max(entry.bbox) <= 1 and any(side % 1 for side in entry.bbox)]
    if 2 * len(normalized) > len(entries):
        raise InputError(
            f"'{path}' must have coordinates in pixels, got boxes from 0 to 1; multiply x by the width and y by the "
            "height of the image"
        )
    objects: dict[int, list[Object]] = {image_id: [] for image_id in sizes}
    for annotation_id, entry in _with_unique_ids(entries, problems):
        try:
            obj, repaired = _read_object(annotation_id, entry, categories, sizes)
        except AnnotationError as error:
            problems[str(error)].append(entry.id)
            continue
        objects[entry.image_id].append(obj)
        if repaired:
            problems[repaired].append(entry.id)
    found = AnnotationProblems(dict(problems))
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
    for shift, advice in ((1, "add 1 to"), (-1, "subtract 1 from")):
        if used - known and {value + shift for value in used} <= known:
            raise InputError(
                f"{key} of the annotations in '{path}' must be among the ids {min(known)} to {max(known)} of the file, "
                f"got {min(used)} to {max(used)}; {advice} each {key}, or remove the annotations of {min(used - known)}"
            )


def _with_unique_ids(entries: Sequence[Entry], problems: defaultdict[str, list[int]]) -> Iterator[tuple[int, Entry]]:
    """Yield each annotation with an id. One with the id of an earlier one is dropped if it is equal to it."""
    first: dict[int, Entry] = {}
    next_id = max((entry.id for entry in entries), default=0) + 1
    for entry in entries:
        if first.setdefault(entry.id, entry) is entry:
            yield entry.id, entry
        elif entry == first[entry.id]:
            problems[_DUPLICATE].append(entry.id)
        else:
            problems[_NEW_ID].append(entry.id)
            yield next_id, entry
            next_id += 1


def _read_object(
    annotation_id: int, entry: Entry, categories: Mapping[int, int], sizes: Mapping[int, tuple[int, int]]
) -> tuple[Object, str]:
    """Return an object, and what was repaired, or "". Raises AnnotationError."""
    if entry.image_id not in sizes:
        raise AnnotationError(_UNKNOWN_IMAGE)
    if entry.category_id not in categories:
        raise AnnotationError(_UNKNOWN_CATEGORY)
    height, width = sizes[entry.image_id]
    segmentation = parse_segmentation(entry.segmentation, height, width)
    encoded = compress(segmentation, height, width)
    mask = _corners(masks_api().toBbox(encoded).tolist())
    if mask[0] == mask[2]:
        raise AnnotationError(NO_MASK)
    box = _corners(entry.bbox)
    clipped = (max(box[0], 0.0), max(box[1], 0.0), min(box[2], float(width)), min(box[3], float(height)))
    repaired = _CLIPPED if _distance(box, clipped) > _MAX_DIFFERENCE else ""
    # near the corner of the image, boxes as x1, y1, x2, y2 agree with their masks, too
    has_corners = _distance(entry.bbox, mask) <= _MAX_DIFFERENCE and _distance(clipped, mask) > 4 * _MAX_DIFFERENCE
    if has_corners or clipped[0] >= clipped[2] or clipped[1] >= clipped[3] or not _agree(clipped, mask):
        clipped, repaired = mask, _BOX
    area = entry.area if entry.area and entry.area > 0 else float(masks_api().area(encoded))
    obj = Object(annotation_id, categories[entry.category_id], clipped, area, entry.iscrowd, segmentation)
    return obj, repaired


def _corners(box: Sequence[float]) -> Box:
    x, y, width, height = box
    return x, y, x + width, y + height


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
