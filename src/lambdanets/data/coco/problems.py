"""Annotations and images of a COCO set that were dropped or repaired, by type of problem."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lambdanets.data.image_search import first_few


class AnnotationError(Exception):
    """An annotation is invalid. Its argument is a problem of `AnnotationProblems`."""


@dataclass(frozen=True)
class AnnotationProblems:
    """The ids of the annotations or images with each problem, which begins with "annotations dropped: " or the like."""

    ids: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """One line per problem: number of ids, description, first ids."""
        return [f"{len(ids)} {problem} (id {first_few(ids)})" for problem, ids in self.ids.items()]

    def counts(self) -> dict[str, int]:
        """The number of ids per problem."""
        return {problem: len(ids) for problem, ids in self.ids.items()}

    @property
    def left_out(self) -> Counter[str]:
        """The number of annotations and images that were dropped."""
        dropped = Counter[str]()
        for problem, ids in self.ids.items():
            kind, is_dropped, _ = problem.partition(" dropped: ")
            if is_dropped:
                dropped[kind] += len(ids)
        return dropped
