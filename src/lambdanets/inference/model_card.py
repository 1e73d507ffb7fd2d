"""Model cards: the metadata of weight files that inference needs, such as class names and preprocessing.

A card is stored as JSON under "lambdanets" in the metadata of a .safetensors file, and in checkpoints, together with
the recipe of the training run.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar

from lambdanets.bounds import TILE_SIZE_RANGE, Range, convert
from lambdanets.data.coco.semantic_masks import MAX_CATEGORIES
from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError, WrongTaskError
from lambdanets.records import parse_json, reraise_as_input_error

ModelOptions = dict[str, bool | int | float | str]


@dataclass(frozen=True)
class DataSource:
    """The dataset on which a classifier was trained, as arguments of `open_splits`. Its validation split is used.

    data: "" if it is unknown.
    """

    data: str = ""
    data_root: str | None = None
    validation_share: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class ModelCard:
    """The name of a model of this package or timm, its options, and the class names.

    stretch: whether intensities with more than 8 bits are stretched (see `to_8_bits`), for a model trained on 8 bits.
    """

    task: ClassVar[str]

    model: str
    classes: tuple[str, ...]
    model_options: ModelOptions = field(default_factory=dict)
    stretch: bool = False

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("classes must have at least one name, got none")
        reserved = {"num_classes", "in_chans", "features_only", "out_indices", "pretrained"}
        if invalid := reserved & self.model_options.keys():
            advice = "; to start from timm's pretrained weights, save the network's state dict as a .safetensors file "
            advice += "and pass that file as weights"
            raise InputError(
                f"model_options must not have {', '.join(sorted(invalid))}, which the data and the recipe determine"
                + (advice if "pretrained" in invalid else "")
            )

    def to_json(self, recipe: Mapping[str, Any]) -> str:
        """Encode the card and the recipe of the run as JSON, for weight files."""
        return json.dumps({"task": self.task} | asdict(self) | {"recipe": recipe})


@dataclass(frozen=True)
class ClassifierCard(ModelCard):
    """The model card of a classifier, with its preprocessing and training data."""

    task: ClassVar[str] = "classification"

    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    source: DataSource = field(default_factory=DataSource)


@dataclass(frozen=True)
class DetectorCard(ModelCard):
    """The model card of a Mask R-CNN: arguments of `mask_rcnn`, COCO category ids, and training and validation data.

    data: the annotation file of the training data, "digits" for the synthetic scattered digits, or "" if unknown.
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

    category_ids: tuple[int, ...] = ()
    image_size: int = 128
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    levels: tuple[int, ...] = (2, 3, 4)
    pyramid_channels: int = 64
    box_layers: tuple[int, int] = (0, 128)
    mask_layers: int = 2
    anchor_scale: float = 4.0
    aspect_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    proposals: int = 500
    max_detections: int = 100
    hide_padding: bool = True
    data: str = "digits"
    images: str | None = None
    validation_data: str | None = None
    validation_images: str | None = None
    tile_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("levels", "aspect_ratios"):
            if not getattr(self, name):
                raise InputError(f"{name} must have at least one number, got none")


@dataclass(frozen=True)
class SegmenterCard(ModelCard):
    """The model card of a segmenter: its normalization, COCO category ids, and training and validation data.

    classes: names of the categories, without the background. data: as for `DetectorCard`.
    """

    task: ClassVar[str] = "segmentation"

    RANGES: ClassVar[dict[str, Range]] = {"std": Range(above=0)}

    category_ids: tuple[int, ...] = ()
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    data: str = "digits"
    images: str | None = None
    validation_data: str | None = None
    validation_images: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) > MAX_CATEGORIES:
            raise InputError(f"classes must be at most {MAX_CATEGORIES}, got {len(self.classes)}")
        if len(self.category_ids) != len(self.classes):
            raise InputError(
                f"category_ids must have one id per class, got {len(self.category_ids)} ids for {len(self.classes)} "
                "classes"
            )


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
