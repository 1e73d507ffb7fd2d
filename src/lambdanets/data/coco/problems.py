"""Annotations and images of a COCO set that were dropped or repaired, by type of problem."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_SHOWN = 5  # maximum number of ids in a message

_DESCRIPTIONS = {
    "duplicate": "annotations dropped: equal to an earlier one",
    "new_id": "ids replaced: an earlier annotation has the same id",
    "unknown_image": "annotations dropped: no image has their image_id",
    "unknown_category": "annotations dropped: no category has their category_id",
    "box": "annotations dropped: the box is empty, outside the image, or not that of the mask",
    "no_mask": "annotations dropped: no segmentation, or one without pixels",
    "damaged_polygon": "annotations dropped: polygons with fewer than 3 points, an odd number of coordinates, "
    "values that are not numbers, or points far outside the image",
    "damaged_rle": "annotations dropped: an RLE that is damaged or not of the image's size",
    "dropped_polygons": "segmentations repaired: polygons with fewer than 3 points were dropped",
    "corners": "boxes repaired: they are x1, y1, x2, y2 instead of x, y, width, height",
    "clipped": "boxes repaired: clipped to the image; if they are many, they may be of images of another size",
    "missing_file": "images dropped: their files are missing",
    "of_missing_file": "annotations dropped: the files of their images are missing",
}


class AnnotationError(Exception):
    """An annotation is invalid. problem: the key of the problem in `AnnotationProblems.ids`."""

    def __init__(self, problem: str) -> None:
        super().__init__(_DESCRIPTIONS[problem])
        self.problem = problem


@dataclass(frozen=True)
class AnnotationProblems:
    """The ids of the annotations with each problem, or of the images for "missing_file"."""

    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """One line per problem: number of ids, description, first ids."""
        return [
            f"{len(self.ids[problem])} {description} (id {first_few(self.ids[problem])})"
            for problem, description in _DESCRIPTIONS.items()
            if self.ids.get(problem)
        ]

    @property
    def left_out(self) -> Counter[str]:
        """The number of annotations and images that were dropped."""
        dropped = Counter[str]()
        for problem, ids in self.ids.items():
            kind, _, _ = _DESCRIPTIONS[problem].partition(" dropped: ")
            if kind in ("annotations", "images"):
                dropped[kind] += len(ids)
        return dropped

    def counts(self) -> dict[str, int]:
        """The number of ids per problem, for JSON."""
        return {problem: len(ids) for problem, ids in self.all_ids().items()}

    def all_ids(self) -> dict[str, list[int]]:
        """The ids per problem, for JSON."""
        return {problem: list(self.ids[problem]) for problem in _DESCRIPTIONS if self.ids.get(problem)}

    def __or__(self, ids: Mapping[str, Sequence[int]]) -> "AnnotationProblems":
        """Return problems that also have these ids."""
        return AnnotationProblems({**self.ids, **{problem: tuple(values) for problem, values in ids.items()}})


def first_few(values: Sequence[object]) -> str:
    """Format up to MAX_SHOWN values, separated by commas."""
    return ", ".join(map(str, values[:MAX_SHOWN])) + (", ..." if len(values) > MAX_SHOWN else "")
