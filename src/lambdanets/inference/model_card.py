"""What a file of weights says of its model: all that inference needs to know, and nothing of how it was trained.

A card is JSON under "lambdanets" in the metadata of a .safetensors file, and in a checkpoint. Beside it stands the
recipe of the training run, for the record. Files written before there were cards have the recipe alone, whose fields
have the names of a card's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar

from lambdanets.bounds import Range, convert
from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.records import parse_json, refused

ModelOptions = dict[str, bool | int | float | str]


@dataclass(frozen=True)
class DataSource:
    """The set that a classifier was trained on, as `open_splits` takes it; its validation part is evaluated on."""

    data: str = "digits"
    data_root: str | None = None
    validation_share: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class ModelCard:
    """The network by its name in timm or in this package, its arguments, and the names of its classes."""

    task: ClassVar[str]

    model: str
    classes: tuple[str, ...]
    model_options: ModelOptions = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("classes must be one name at least, got none")
        fixed = {"num_classes", "in_chans", "features_only", "out_indices", "pretrained"} & self.model_options.keys()
        if fixed:
            raise InputError(f"model_options must leave {', '.join(sorted(fixed))} to the card")

    def to_json(self, recipe: Mapping[str, Any]) -> str:
        """The card and the recipe of the run, as files of weights keep them."""
        return json.dumps({"task": self.task} | asdict(self) | {"recipe": recipe})


@dataclass(frozen=True)
class ClassifierCard(ModelCard):
    """A classifier, how its images are prepared, and what it was trained on."""

    task: ClassVar[str] = "classification"

    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    source: DataSource = field(default_factory=DataSource)


@dataclass(frozen=True)
class DetectorCard(ModelCard):
    """A Mask R-CNN: the arguments of `mask_rcnn`, COCO's id of each class, and what it was validated on.

    data "digits": scattered digits, without files of annotations.
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
    """A card from JSON, or from a recipe's fields and the classes. Raises InputError; source names the file."""
    parts = dict.fromkeys(("preprocessing", "source"), fields)  # in a recipe their fields stand among the others
    with refused(source):
        return convert({**parts, **fields}, kind)


class Described(TypedDict):
    """What a weight file has in its metadata: this, and the fields of its model's card."""

    classes: tuple[str, ...]
    recipe: dict[str, Any]


def read_card(path: Path, rest: Mapping[str, Any], *kinds: type[Card]) -> Card:
    """The card that a file of weights has beside them. Raises InputError where there is none of these kinds."""
    content = described(path, rest)
    fields = content if "model" in content else {**content["recipe"], **content}
    task = fields.get("task", "classification")
    for kind in kinds:
        if kind.task == task:
            return make_card(kind, fields, str(path))
    raise InputError(f"{path} is of a run of {task}, not of {' or '.join(kind.task for kind in kinds)}")


def described(path: Path, rest: Mapping[str, Any]) -> Described:
    """What a file of weights says beside them."""
    problem = f"{path} does not say which model and classes it holds"
    return parse_json(rest.get("lambdanets", ""), Described, problem, "expected a file that a run left")
