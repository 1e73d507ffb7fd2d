"""The base class of the tasks on COCO-format annotations."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from lambdanets.data.coco.annotations import AnnotatedImages
from lambdanets.data.coco.images import open_annotated
from lambdanets.data.coco.scattered_digits import open_digits
from lambdanets.data.order import permutation
from lambdanets.errors import InputError
from lambdanets.inference.coco_predictor import open_validation
from lambdanets.inference.loading import read_model
from lambdanets.models.weights import find_weights
from lambdanets.tasks.recipes import CocoRecipe
from lambdanets.training.task import Task


class CocoTask(Task):
    """Opens and identifies the data."""

    EVALUATION_BATCH_SIZE: ClassVar[int | None] = 1  # so that rounding does not depend on the world size

    training: AnnotatedImages
    validation: AnnotatedImages

    def __init__(self, recipe: CocoRecipe) -> None:
        """Open the data. Raises InputError if the sets have other categories, or one has no objects."""
        super().__init__(recipe)
        if recipe.data == "digits":
            training, self.source = open_digits()[0], "scikit-learn's digits, scattered"
        else:
            training = open_annotated(Path(recipe.data), Path(recipe.images or ""))
            self.source = f"{recipe.data} and {recipe.validation_data}"
        categories = training.categories
        self.training_sha256 = training.fingerprint  # of the whole set, since subsets depend on the seed
        if recipe.training_images is not None:
            if recipe.training_images > len(training):
                raise InputError(f"training_images must be at most {len(training)}, got {recipe.training_images}")
            subset = permutation(len(training), recipe.seed, 0)[: recipe.training_images]
            self.source += f", {len(subset)} of {len(training)} training images"
            training = training.select(sorted(subset.tolist()))
        self.training = replace(training, stretch=recipe.stretch)
        self.validation = replace(open_validation(recipe.fields(), categories), stretch=recipe.stretch)
        for name, images in (("data", self.training), ("validation_data", self.validation)):
            if all(instance.crowd for image in images.images for instance in image.objects):
                got = f"none: {self.source}; if a tool wrote 1 for masks of single objects, as CVAT does, write 0"
                raise InputError(f"{name} must have at least one object with iscrowd 0, got {got}")
        self.classes = tuple(category.name for category in categories)
        self.category_ids = tuple(category.id for category in categories)
        self.left_out = self.training.problems.left_out + self.validation.problems.left_out
        self.findings = {"training": self.training.problems, "validation": self.validation.problems}
        fingerprints = self.training_sha256 + self.validation.fingerprint
        self.fingerprint = hashlib.sha256(fingerprints.encode()).hexdigest()

    @classmethod
    def resolve(cls, recipe: Any) -> Any:
        """Return the recipe with `stretch` if the model of its initial weights stretches images."""
        if recipe.weights is not None and not recipe.stretch:
            with suppress(InputError):  # of weights that a resumed run does not need, and may be missing
                card = read_model(find_weights(recipe.weights))[1]
                recipe = replace(recipe, stretch=card is not None and card.stretch)
        return recipe

    def provenance(self) -> dict[str, Any]:
        data, validation_data = self.recipe.data, self.recipe.validation_data or self.recipe.data
        return {
            "dropped": {
                name: {problem: len(ids) for problem, ids in found.items()} for name, found in self.findings.items()
            },
            "training_data": {"name": data, "sha256": self.training_sha256},
            "validation_data": {"name": validation_data, "sha256": self.validation.fingerprint},
        }
