"""Model cards: the metadata of weight files that inference needs, such as class names and preprocessing.

A card is stored as JSON under "lambdanets" in the metadata of a .safetensors file, and in checkpoints, together with
the recipe of the training run.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, TypeVar

from lambdanets.bounds import TILE_SIZE_RANGE, Range, convert
from lambdanets.data.coco.semantic_masks import MAX_CATEGORIES
from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError, WrongTaskError
from lambdanets.models.factory import check_architecture
from lambdanets.models.weights import packaged_models
from lambdanets.records import parse_json, reraise_as_input_error

ModelOptions = dict[str, bool | int | float | str | list[Any]]  # lists, as in folders of timm
# Fields of recipes with paths, URLs or names of data of the user, which stay on the machine.
PATHS = frozenset(
    ("data", "data_root", "images", "validation_data", "validation_images", "weights", "pseudo_labels", "pseudo_images")
)


def is_public(name: str) -> bool:
    """Whether the name of a dataset or of weights is one that all users have: not a path, a URL or a repository."""
    return name == "digits" or name.startswith("torch/") or name in packaged_models()


def without_paths(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe for files that may leave the machine."""
    return {name: value for name, value in recipe.items() if name not in PATHS or is_public(value or "")}


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class ModelCard(ABC):
    """The name of a model of this package or timm, its options, and the class names.

    No field has a default, since that of a later version could be another network.

    stretch: whether intensities are stretched (see `to_8_bits`), for a model that was trained on 8-bit images.
    """

    task: ClassVar[str]

    model: str
    classes: tuple[str, ...]
    model_options: ModelOptions
    stretch: bool

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("classes must have at least one name, got none")
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


@dataclass(frozen=True)
class ClassifierCard(ModelCard):
    """The model card of a classifier, with its preprocessing and training data."""

    task: ClassVar[str] = "classification"

    preprocessing: Preprocessing
    source: DataSource

    def with_data(self, recipe: Mapping[str, Any]) -> Self:
        return replace(self, source=convert({**recipe, "held_out": self.source.held_out}, DataSource))

    def without_data(self) -> Self:
        data = self.source.data if is_public(self.source.data) else ""
        return replace(self, source=replace(self.source, data=data, data_root=None))


@dataclass(frozen=True)
class CocoCard(ModelCard):
    """The model card of a model that was trained on COCO-format annotations, with its category ids and normalization.

    data: the annotation file of the training data, "digits" for the synthetic scattered digits, or "" if unknown.
    """

    category_ids: tuple[int, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    data: str
    images: str | None
    validation_data: str | None
    validation_images: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.category_ids) != len(self.classes):
            raise InputError(
                f"category_ids must have one id per class, got {len(self.category_ids)} ids for {len(self.classes)} "
                "classes"
            )

    def with_data(self, recipe: Mapping[str, Any]) -> Self:
        names = ("images", "validation_data", "validation_images")
        return replace(self, data=recipe["data"], **{name: recipe[name] for name in names})

    def without_data(self) -> Self:
        data = self.data if is_public(self.data) else ""
        return replace(self, data=data, images=None, validation_data=None, validation_images=None)


@dataclass(frozen=True)
class DetectorCard(CocoCard):
    """The model card of a Mask R-CNN: arguments of `mask_rcnn`.

    tile_size: side in pixels of the tiles into which `detect predict` divides images of more than twice this side; None
        for no tiles.
    """

    task: ClassVar[str] = "detection"

    RANGES: ClassVar[dict[str, Range]] = {
        "image_size": Range(4, 10_000),
        "mask_layers": Range(0),
        **dict.fromkeys(("pyramid_channels", "proposals", "max_detections"), Range(1)),
        "tile_size": TILE_SIZE_RANGE,
        **dict.fromkeys(("anchor_scale", "aspect_ratios", "std"), Range(above=0)),
    }

    image_size: int
    levels: tuple[int, ...]
    pyramid_channels: int
    box_layers: tuple[int, int]
    mask_layers: int
    anchor_scale: float
    aspect_ratios: tuple[float, ...]
    proposals: int
    max_detections: int
    hide_padding: bool
    tile_size: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("levels", "aspect_ratios"):
            if not getattr(self, name):
                raise InputError(f"{name} must have at least one number, got none")


@dataclass(frozen=True)
class SegmenterCard(CocoCard):
    """The model card of a segmenter. classes: names of the categories, without the background."""

    task: ClassVar[str] = "segmentation"

    RANGES: ClassVar[dict[str, Range]] = {"std": Range(above=0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) > MAX_CATEGORIES:
            raise InputError(f"classes must be at most {MAX_CATEGORIES}, got {len(self.classes)}")


Card = TypeVar("Card", bound=ModelCard)


def make_card(card_type: type[Card], fields: Mapping[str, Any], source: str) -> Card:
    """Make a card from its JSON, or from the fields of a recipe and the classes.

    source: the file, for error messages. Raises InputError if the fields do not match the card.
    """
    nested = dict.fromkeys(("preprocessing", "source"), fields)  # a recipe has these fields at the top level
    with reraise_as_input_error(source):
        return convert({**nested, **fields}, card_type)


class Description(TypedDict):
    """The metadata that all weight files have."""

    task: str
    model: str
    classes: tuple[str, ...]
    recipe: dict[str, Any]


def read_card(path: Path, metadata: Mapping[str, Any], *card_types: type[Card]) -> Card:
    """Parse the card in the metadata of a weight file. Raises InputError if it has none of these types."""
    description = read_description(path, metadata)
    task = description["task"]
    for card_type in card_types:
        if card_type.task == task:
            return make_card(card_type, description, str(path))
    *others, last = (card_type.task for card_type in card_types)
    expected = f"{', '.join(others)} or {last}" if others else last
    raise WrongTaskError(f"{path} must be a {expected} model, got a {task} model", task)


def read_description(path: Path, metadata: Mapping[str, Any]) -> Description:
    """Parse this package's JSON in the metadata of a weight file. Raises InputError if it is missing or invalid."""
    problem = f"{path} has no valid model card"
    return parse_json(metadata.get("lambdanets", ""), Description, problem, "use a weight file of a run")
