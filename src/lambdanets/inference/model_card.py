"""Model cards: the metadata of weight files that inference needs, such as class names and preprocessing.

A card is stored as JSON under "lambdanets" in the metadata of a .safetensors file, and in checkpoints, together with
the recipe of the training run.
"""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field

from lambdanets.data.coco.loader import MAX_CATEGORIES
from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.inference.architecture import AnnotatedData, Architecture, DetectorArchitecture
from lambdanets.models.factory import check_architecture
from lambdanets.models.weights import packaged_models
from lambdanets.records import Several, TileSize, parse_json, record, reraise_as_input_error, shared_fields
from lambdanets.registry import TASKS, installed_tasks, predictor_of


def is_public(name: str) -> bool:
    """Whether the name of a dataset or of weights is one that all users have: not a path, a URL or a repository."""
    return name == "digits" or name.startswith("torch/") or name in packaged_models()


def without_paths(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe for files that may leave the machine: no paths, URLs or names of private data."""
    private = TASKS[recipe.get("task", "classification")].recipe_class.PATHS
    return {name: value for name, value in recipe.items() if name not in private or is_public(value or "")}


@record
class DataSource:
    """The dataset on which a classifier was trained, as arguments of `open_splits`. Its validation split is used.

    data: "" if it is unknown.
    held_out: hash of the held-out images (see `Splits`), by which a later evaluation recognizes them;
        "" if the dataset has its own validation split, or if it is unknown, as in older weight files.
    """

    data: str
    data_root: str | None
    validation_share: float
    seed: int
    held_out: str = ""


@record
class ModelCard(Architecture, ABC):
    """The name of a model of this package or timm, its options, and the class names.

    stretch: whether intensities are stretched (see `to_8_bits`), for a model that was trained on 8-bit images.
    """

    task: ClassVar[str]

    classes: Annotated[Several[str], Field(min_length=1)]
    stretch: bool

    def __post_init__(self) -> None:
        if invalid := {"num_classes", "in_chans"} & self.model_options.keys():
            raise InputError(
                f"model_options must not have {', '.join(sorted(invalid))}, which the data and the recipe determine"
            )
        check_architecture(self.model, self.model_options)

    @abstractmethod
    def with_data(self, recipe: Mapping[str, Any]) -> Self:
        """Return the card with the training and validation data of a recipe."""

    @abstractmethod
    def without_data(self) -> Self:
        """Return the card with only those data that all users have."""

    def to_json(self, recipe: Mapping[str, Any]) -> str:
        """Encode the card and the recipe of the run as JSON, for checkpoints."""
        return json.dumps({"task": self.task} | asdict(self) | {"recipe": recipe})

    def to_public_json(self, recipe: Mapping[str, Any]) -> str:
        """Encode them without paths and names of data, for files that may leave the machine, such as weight files."""
        return self.without_data().to_json(without_paths(recipe))


@record
class ClassifierCard(ModelCard):
    """The model card of a classifier, with its preprocessing and training data."""

    task: ClassVar[str] = "classification"

    preprocessing: Preprocessing
    source: DataSource

    def with_data(self, recipe: Mapping[str, Any]) -> Self:
        names = {field.name for field in dataclasses.fields(DataSource)} & recipe.keys()
        return replace(self, source=replace(self.source, **{name: recipe[name] for name in names}))

    def without_data(self) -> Self:
        data = self.source.data if is_public(self.source.data) else ""
        return replace(self, source=replace(self.source, data=data, data_root=None))


@record
class CocoCard(ModelCard, AnnotatedData):
    """The model card of a model that was trained on COCO-format annotations, with its category ids and normalization.

    data: the annotation file of the training data, "digits" for the synthetic scattered digits, or "" if unknown.
    """

    category_ids: Several[int]

    def with_data(self, recipe: Mapping[str, Any]) -> Self:
        names = ("data", "images", "validation_data", "validation_images")
        return replace(self, **{name: recipe[name] for name in names})

    def without_data(self) -> Self:
        data = self.data if is_public(self.data) else ""
        return replace(self, data=data, images=None, validation_data=None, validation_images=None)


@record
class DetectorCard(CocoCard, DetectorArchitecture):
    """The model card of a Mask R-CNN: arguments of `mask_rcnn`.

    tile_size: side in pixels of the tiles into which `lambdanets predict` divides images of more than twice this side;
        None for no tiles.
    """

    task: ClassVar[str] = "detection"

    tile_size: TileSize | None


@record
class SegmenterCard(CocoCard):
    """The model card of a segmenter. classes: names of the categories, without the background."""

    task: ClassVar[str] = "segmentation"

    classes: Annotated[Several[str], Field(min_length=1, max_length=MAX_CATEGORIES)]


Card = TypeVar("Card", bound=ModelCard)


def make_card(card_type: type[Card], recipe: Architecture, **others: Any) -> Card:
    """Make the card of a recipe's network. others: the fields that the recipe does not have."""
    with reraise_as_input_error("the recipe"):
        return card_type(**shared_fields(recipe, card_type), **others)


@dataclasses.dataclass(frozen=True)
class Description:
    """The metadata that all weight files have."""

    task: str
    model: str
    classes: tuple[str, ...]
    recipe: dict[str, Any]


def read_card(path: Path, metadata: Mapping[str, Any]) -> ModelCard:
    """Parse the card in the metadata of a weight file. Raises InputError if it has none, or one of an unknown task."""
    task = read_description(path, metadata).task
    if task not in TASKS and task not in installed_tasks():
        known = [name for name in TASKS if predictor_of(name).card_type.task == name]
        raise InputError(wrong_task(path, known, task))
    return parse_card(metadata["lambdanets"], predictor_of(task).card_type, str(path))


def wrong_task(path: Path, tasks: Sequence[str], task: str) -> str:
    """Return the message about a model of another task than `tasks`."""
    *others, last = tasks
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{path} must be a {expected} model, got a {task} model"


def parse_card(content: str, card_type: type[Card], source: str) -> Card:
    """Parse the JSON of a card. source: the file, for messages.

    Raises InputError also for a missing field that builds the network or prepares its images: the default of a later
    version could be another one.
    """
    fields = json.loads(content)
    building = [base for base in card_type.__mro__ if base.__module__ == Architecture.__module__]
    for kind, given in (*((base, fields) for base in building), (Preprocessing, fields.get("preprocessing"))):
        for field in dataclasses.fields(kind):
            if isinstance(given, dict) and field.name not in given:
                raise InputError(f"{source}: {field.name} must be given, got none")
    return parse_json(content, card_type, source)


def read_description(path: Path, metadata: Mapping[str, Any]) -> Description:
    """Parse this package's JSON in the metadata of a weight file. Raises InputError if it is missing or invalid."""
    problem = f"{path} has no valid model card"
    return parse_json(metadata.get("lambdanets", ""), Description, problem, "use a weight file of a run")
