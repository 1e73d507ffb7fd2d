"""The recipe of a student: a classification recipe with pseudo-labeled images."""

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from lambdanets.errors import InputError
from lambdanets.records import record
from lambdanets.tasks.recipes import ClassificationRecipe


@record
class StudentRecipe(ClassificationRecipe):
    """Hyperparameters of a student. Its labeled images are `data`, as of any classifier."""

    task: ClassVar[str] = "student"
    PATHS: ClassVar[tuple[str, ...]] = (*ClassificationRecipe.PATHS, "pseudo_labels", "pseudo_images")

    pseudo_labels: str = ""
    """Also train on these pseudo-labels: a folder written by lambdanets pseudo-label select."""
    pseudo_images: str = ""
    """Folder or URL of the shards with the pseudo-labeled images."""
    pseudo_ratio: PositiveFloat = 1.0
    """Number of pseudo-labeled images per labeled image. An epoch is one pass over the labeled images."""
    pseudo_targets: Literal["soft", "hard"] = "soft"
    """Targets of pseudo-labeled images. soft: the teacher's probabilities; hard: its most probable class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pseudo_batch_size:
            raise InputError(
                f"pseudo_ratio must give at least one pseudo-labeled image per batch of {self.batch_size}, "
                f"got {self.pseudo_ratio}"
            )

    @property
    def pseudo_batch_size(self) -> int:
        """Number of pseudo-labeled images per step, in addition to batch_size."""
        return round(self.batch_size * self.pseudo_ratio)

    def step_sizes(self, num_images: int) -> tuple[int, ...]:
        return (*super().step_sizes(num_images), self.pseudo_batch_size)
