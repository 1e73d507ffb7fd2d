"""Annotations and images of a COCO set that were dropped or repaired, by kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_SHOWN = 5  # ids in a message

_KINDS = {
    "duplicate_id": "annotations dropped: an earlier one has the same id",
    "unknown_image": "annotations dropped: no image has their image_id",
    "unknown_category": "annotations dropped: no category has their category_id",
    "no_extent": "annotations dropped: width, height or area is not above 0",
    "outside": "annotations dropped: the box lies outside the image",
    "no_mask": "annotations dropped: no segmentation, or an empty one",
    "damaged_polygon": "annotations dropped: polygons with fewer than 3 points, an odd number of coordinates, "
    "values that are not numbers, or points far outside the image",
    "damaged_rle": "annotations dropped: an RLE that is damaged or not of the image's size",
    "shortened_polygon": "segmentations shortened: polygons of fewer than 3 points were dropped",
    "clipped": "boxes clipped: they extend beyond the image by more than a pixel",
    "missing_file": "images dropped: their files are missing",
    "of_missing_file": "annotations dropped with the images whose files are missing",
}


class AnnotationError(Exception):
    """An annotation cannot be used. kind: a key of the findings."""

    def __init__(self, kind: str) -> None:
        super().__init__(_KINDS[kind])
        self.kind = kind


@dataclass(frozen=True)
class Findings:
    """The ids per kind of finding: of annotations, or of images for "missing_file"."""

    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """One line per kind: count, description, first ids."""
        return [f"{len(self.ids[kind])} {text} (id {first_few(self.ids[kind])})" for kind, text in self._nonempty()]

    def counts(self) -> dict[str, int]:
        """The number of ids per kind, for JSON."""
        return {kind: len(self.ids[kind]) for kind, _ in self._nonempty()}

    def all_ids(self) -> dict[str, list[int]]:
        """The ids per kind, for JSON."""
        return {kind: list(self.ids[kind]) for kind, _ in self._nonempty()}

    def __or__(self, more: Mapping[str, Sequence[int]]) -> "Findings":
        """The findings, with more kinds added."""
        return Findings({**self.ids, **{kind: tuple(ids) for kind, ids in more.items()}})

    def _nonempty(self) -> list[tuple[str, str]]:
        return [(kind, text) for kind, text in _KINDS.items() if self.ids.get(kind)]


def first_few(values: Sequence[object]) -> str:
    """The first values, separated by commas."""
    return ", ".join(map(str, values[:MAX_SHOWN])) + (", ..." if len(values) > MAX_SHOWN else "")
