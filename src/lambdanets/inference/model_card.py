"""Model cards: what a weight file says about its model, all that inference needs.

A card is JSON under "lambdanets" in the metadata of a .safetensors file, and in a checkpoint, together with the recipe
of the training run. Older files have only the recipe, whose fields have the same names.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar

from lambdanets.bounds import Range, convert
from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.records import parse_json, reraise_as_input_error

ModelOptions = dict[str, bool | int | float | str]


@dataclass(frozen=True)
class DataSource:
    """The data set of a classifier's training, as for `open_splits`; evaluation uses its validation split."""

    data: str = "digits"
    data_root: str | None = None
    validation_share: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class ModelCard:
    """Model name in this package or timm, model options, and class names."""

    task: ClassVar[str]

    model: str
    classes: tuple[str, ...]
    model_options: ModelOptions = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("classes must have at least one name, got none")
        fixed = {"num_classes", "in_chans", "features_only", "out_indices", "pretrained"} & self.model_options.keys()
        if fixed:
            raise InputError(f"model_options must not have {', '.join(sorted(fixed))}, which the card determines")

    def to_json(self, recipe: Mapping[str, Any]) -> str:
        """The card and the recipe of the run, for weight files."""
        return json.dumps({"task": self.task} | asdict(self) | {"recipe": recipe})


@dataclass(frozen=True)
class ClassifierCard(ModelCard):
    """Model card of a classifier, with preprocessing and training data."""

    task: ClassVar[str] = "classification"

    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    source: DataSource = field(default_factory=DataSource)


@dataclass(frozen=True)
class DetectorCard(ModelCard):
    """Model card of a Mask R-CNN: arguments of `mask_rcnn`, COCO category ids, and validation data.

    data "digits": scattered digits, without annotation files.
    """

    task: ClassVar[str] = "detection"

    RANGES: ClassVar[dict[str, Range]] = {
        "image_size": Range(4, 10_000),
        "mask_layers": Range(0),
        **dict.fromkeys(("pyramid_channels", "proposals", "detections"), Range(1)),
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
    detections: int = 100
    hide_padding: bool = True
    data: str = "digits"
    images: str | None = None
    validation_data: str | None = None
    validation_images: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("levels", "aspect_ratios"):
            if not getattr(self, name):
                raise InputError(f"{name} must have at least one number, got none")


Card = TypeVar("Card", bound=ModelCard)


def make_card(kind: type[Card], fields: Mapping[str, Any], source: str) -> Card:
    """A card from JSON, or from a recipe's fields and classes. Raises InputError; source names the file."""
    parts = dict.fromkeys(("preprocessing", "source"), fields)  # a recipe has their fields at top level
    with reraise_as_input_error(source):
        return convert({**parts, **fields}, kind)


class Description(TypedDict):
    """Metadata of a weight file, without the fields of the card."""

    classes: tuple[str, ...]
    recipe: dict[str, Any]


def read_card(path: Path, rest: Mapping[str, Any], *kinds: type[Card]) -> Card:
    """The card of a weight file. Raises InputError if it has none of these kinds."""
    content = read_description(path, rest)
    fields = content if "model" in content else {**content["recipe"], **content}
    task = fields.get("task", "classification")
    for kind in kinds:
        if kind.task == task:
            return make_card(kind, fields, str(path))
    raise InputError(f"{path} must be a {' or '.join(kind.task for kind in kinds)} model, got a {task} model")


def read_description(path: Path, rest: Mapping[str, Any]) -> Description:
    """The metadata of a weight file."""
    problem = f"{path} has no valid model card"
    return parse_json(rest.get("lambdanets", ""), Description, problem, "use a weight file of a run")
