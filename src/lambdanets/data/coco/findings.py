"""What was found wrong with single annotations or images of a set, and left out or mended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SHOWN = 5  # ids in a line

_KINDS = {
    "duplicate_id": "annotations dropped: an earlier one has the same id",
    "unknown_image": "annotations dropped: no image has their image_id",
    "unknown_category": "annotations dropped: no category has their category_id",
    "no_extent": "annotations dropped: width, height or area is not above 0",
    "outside": "annotations dropped: the box lies outside the image",
    "no_mask": "annotations dropped: no segmentation, or an empty one",
    "damaged_polygon": "annotations dropped: polygons of fewer than 3 points, of an odd number of coordinates, "
    "of other things than numbers, or far outside the image",
    "damaged_rle": "annotations dropped: an RLE that is damaged or of another size than the image",
    "shortened_polygon": "polygons shortened: parts of fewer than 3 points were dropped",
    "clipped": "boxes clipped: they went beyond the image by more than a pixel",
    "missing_file": "images dropped: their files are not there",
    "of_missing_file": "annotations dropped with the images whose files are not there",
}


class Dropped(Exception):  # noqa: N818 - it names what was found, as UnreadableImage does
    """An annotation cannot be used: `kind` is its kind of finding."""

    def __init__(self, kind: str) -> None:
        super().__init__(_KINDS[kind])
        self.kind = kind


@dataclass(frozen=True)
class Findings:
    """The ids that each kind of finding has: of annotations, or of images for "missing_file"."""

    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """A line for each kind that was found: what, how many, the first ids."""
        return [f"{len(self.ids[kind])} {text} (id {first(self.ids[kind])})" for kind, text in self._found()]

    def counts(self) -> dict[str, int]:
        """How many there are of each kind that was found, for JSON."""
        return {kind: len(self.ids[kind]) for kind, _ in self._found()}

    def all_ids(self) -> dict[str, list[int]]:
        """The ids of each kind that was found, for JSON."""
        return {kind: list(self.ids[kind]) for kind, _ in self._found()}

    def __or__(self, more: Mapping[str, Sequence[int]]) -> "Findings":
        """These findings with those of other kinds."""
        return Findings({**self.ids, **{kind: tuple(ids) for kind, ids in more.items()}})

    def _found(self) -> list[tuple[str, str]]:
        return [(kind, text) for kind, text in _KINDS.items() if self.ids.get(kind)]


def first(things: Sequence[object]) -> str:
    """The first few of some things, separated by commas."""
    return ", ".join(map(str, things[:SHOWN])) + (", ..." if len(things) > SHOWN else "")
