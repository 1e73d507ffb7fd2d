"""Model cards: the metadata of weight files that inference needs, such as class names and preprocessing.

A card is stored as JSON under "lambdanets" in the metadata of a .safetensors file, and in checkpoints. It contains the
recipe of the training run.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field

from lambdanets.data.coco.images import MAX_CATEGORIES
from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.inference.architecture import Architecture, DetectorArchitecture, Normalization
from lambdanets.models.weights import packaged_models
from lambdanets.records import Several, TileSize, parse_json, record, reraise_as_input_error, shared_fields
from lambdanets.registry import TASKS, installed_tasks, predictor_of


@record
class ModelCard(Architecture):
    """The name of a model of this package or timm, its options, and the class names.

    stretch: whether intensities are stretched (see `to_8_bits`), for a model that was trained on 8-bit images.
    recipe: fields of the recipe of the training run, which also name its data; {} if there was none.
    """

    task: ClassVar[str]

    classes: Annotated[Several[str], Field(min_length=1)]
    stretch: bool
    recipe: dict[str, Any]

    def to_json(self) -> str:
        """Encode the card as JSON, for checkpoints."""
        return json.dumps({"task": self.task} | asdict(self))

    def without_paths(self) -> Self:
        """Return the card for files that may leave the machine: no paths, URLs or names of private data in the recipe.

        Names that all users have are kept: those of packaged models, of timm's datasets, and "digits".
        """
        private = TASKS[self.recipe.get("task", self.task)].recipe_class.PATHS
        public = {name: value for name, value in self.recipe.items() if name not in private or _is_public(value or "")}
        return replace(self, recipe=public)


def _is_public(name: str) -> bool:
    return name == "digits" or name.startswith("torch/") or name in packaged_models()


@record
class ClassifierCard(ModelCard):
    """The model card of a classifier, with its preprocessing.

    held_out: hash of the held-out images (see `Splits`), by which a later evaluation recognizes them; "" if the dataset
        has its own validation split, or if it is unknown, as in older weight files.
    """

    task: ClassVar[str] = "classification"

    preprocessing: Preprocessing
    held_out: str = ""


@record
class CocoCard(ModelCard, Normalization):
    """The model card of a model that was trained on COCO-format annotations. category_ids: in the order of classes."""

    category_ids: Several[int]


@record
class DetectorCard(CocoCard, DetectorArchitecture):
    """The model card of a Mask R-CNN: arguments of `mask_rcnn`.

    tile_size: side in pixels of the tiles into which `lambdanets predict` divides images of more than twice this side;
        None for no tiles.
    """

    task: ClassVar[str] = "detection"

    tile_size: TileSize | None = None


@record
class SegmenterCard(CocoCard):
    """The model card of a segmenter. classes: names of the categories, without the background."""

    task: ClassVar[str] = "segmentation"

    classes: Annotated[Several[str], Field(min_length=1, max_length=MAX_CATEGORIES)]


Card = TypeVar("Card", bound=ModelCard)


def make_card(card_type: type[Card], recipe: Any, /, classes: Any, **others: Any) -> Card:
    """Make the card of a recipe's network. others: the fields that the recipe does not have."""
    fields = {"stretch": False, **others, **shared_fields(recipe, card_type)}
    with reraise_as_input_error("the recipe"):
        return card_type(**fields | {"classes": tuple(classes), "recipe": recipe.fields()})


def read_card(source: str | Path, metadata: Mapping[str, Any]) -> ModelCard:
    """Parse the card in the metadata of a weight file. source: for messages.

    Raises InputError if it has none, one of an unknown task, or one without a field: the default of a later version
    could be another one.
    """
    if "lambdanets" not in metadata:
        raise InputError(f"{source} has no model card; use a weight file of a run")
    content, problem = metadata["lambdanets"], f"{source} has no valid model card"
    fields = parse_json(content, dict[str, Any], problem)
    task = str(fields.get("task"))
    if task not in TASKS and task not in installed_tasks():
        raise InputError(f"{source} must be a model of a task in {', '.join(TASKS)}, got one of {task!r}")
    card_type: type[ModelCard] = predictor_of(task).card_type
    for kind, stored in ((card_type, fields), (Preprocessing, fields.get("preprocessing"))):
        for field in dataclasses.fields(kind):
            if isinstance(stored, dict) and field.name not in {*stored, "held_out"}:
                raise InputError(f"{problem}: {field.name} must be given, got none")
    return parse_json(content, card_type, problem)
