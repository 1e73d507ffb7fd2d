"""The fields that build a network, which recipes and model cards share; and model cards, the metadata of weight files.

A card has what inference needs, such as class names and preprocessing, and the recipe of the training run. It is stored
as JSON under "lambdanets" in the metadata of a .safetensors file, and in checkpoints. Nothing here imports PyTorch
before it is used, so that recipes do not.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, Strict

from lambdanets.data.transforms import Preprocessing
from lambdanets.errors import InputError
from lambdanets.records import Several, TileSize, parse_json, record, reraise_as_input_error, shared_fields
from lambdanets.registry import task_entry


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    if invalid := sorted({"num_classes", "in_chans"} & options.keys()):
        raise InputError(f"model_options must not have {', '.join(invalid)}, which the data and the recipe determine")
    return options


ModelOptions = Annotated[dict[str, bool | int | float | str | list[Any]], AfterValidator(_check_options)]


@record
class Architecture:
    """The network."""

    model: str = ""
    """Model name, from lambdanets or timm."""
    model_options: ModelOptions = dataclasses.field(default_factory=dict)
    """Keyword arguments of the model as pairs of name and value, for example: scope 7 content False."""

    def checked_options(self) -> dict[str, Any]:
        """Return model_options. Raises InputError if they, or `model`, are more than the name of an architecture."""
        from lambdanets.models.factory import check_architecture

        check_architecture(self.model, self.model_options)
        return dict(self.model_options)


@record
class Normalization:
    """Normalization of color images."""

    mean: Annotated[tuple[float, float, float], Strict(False)] = (0.485, 0.456, 0.406)
    """Mean for normalizing pixels in [0, 1], one number per channel."""
    std: Annotated[tuple[PositiveFloat, PositiveFloat, PositiveFloat], Strict(False)] = (0.229, 0.224, 0.225)
    """Standard deviation for normalizing pixels in [0, 1], one number per channel."""


@record
class DetectorArchitecture(Architecture, Normalization):
    """The networks of Mask R-CNN: arguments of `mask_rcnn`."""

    image_size: Annotated[int, Field(ge=4, le=10_000)] = 1024
    """Longer side of an image after resizing, in pixels. In training it is multiplied by a random factor (--jitter)."""
    levels: Annotated[Several[int], Field(min_length=1)] = (1, 2, 3, 4)
    """Feature maps of the backbone that the feature pyramid uses. Level 0 has stride 2, level 1 stride 4, and so on."""
    pyramid_channels: PositiveInt = 256
    """Channels of the feature pyramid."""
    box_layers: Annotated[tuple[NonNegativeInt, PositiveInt], Strict(False)] = (4, 1024)
    """Box head: number of 3x3 convolutions and width of the fully connected layer."""
    mask_layers: NonNegativeInt = 4
    """Mask head: number of 3x3 convolutions."""
    anchor_scale: PositiveFloat = 8.0
    """Side of the anchors, as a multiple of the stride of their level."""
    aspect_ratios: Annotated[Several[PositiveFloat], Field(min_length=1)] = (0.5, 1.0, 2.0)
    """Aspect ratios of the anchors: height divided by width."""
    proposals: PositiveInt = 1000
    """Proposals per image that the region proposal network keeps after non-maximum suppression."""
    max_detections: PositiveInt = 100
    """Maximum number of detections per image."""
    hide_padding: bool = True
    """Mask padding in every layer, so that it has no effect. Backbones with attention need --no-hide-padding."""


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
        from lambdanets.models.weights import packaged_models

        known = {"digits", *packaged_models()}
        private: Collection[str] = self.recipe
        with suppress(InputError):  # of a task that is not installed here
            private = resolve_name(task_entry(self.recipe.get("task", self.task), "the card").recipe).PATHS
        public = {
            name: value
            for name, value in self.recipe.items()
            if name not in private or str(value) in known or str(value).startswith("torch/")
        }
        return replace(self, recipe=public)


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

    tile_size: side in pixels of the tiles into which predictions divide images of more than twice this side; None for
        no tiles.
    """

    task: ClassVar[str] = "detection"

    tile_size: TileSize | None = None


@record
class SegmenterCard(CocoCard):
    """The model card of a segmenter. classes: names of the categories, without the background."""

    task: ClassVar[str] = "segmentation"

    classes: Annotated[Several[str], Field(min_length=1, max_length=254)]  # 255 are the ignored pixels of a mask


Card = TypeVar("Card", bound=ModelCard)


def make_card(card_type: type[Card], recipe: Any, /, classes: Any, **others: Any) -> Card:
    """Make the card of a recipe's network. others: the fields that the recipe does not have."""
    fields = {"stretch": False, **others, **shared_fields(recipe, card_type)}
    with reraise_as_input_error("the recipe"):
        return card_type(**fields | {"classes": tuple(classes), "recipe": recipe.fields()})


def read_card(source: str | Path, metadata: Mapping[str, Any]) -> ModelCard:
    """Parse the card in the metadata of a weight file. source: for messages.

    Raises InputError if its task is unknown, or if it lacks a field: the default of a later version could be another
    one.
    """
    content, problem = metadata["lambdanets"], f"{source} has no valid model card"
    fields = parse_json(content, dict[str, Any], problem)
    card_type: type[ModelCard] = resolve_name(task_entry(fields.get("task"), source).predictor).card_type
    for kind, stored in ((card_type, fields), (Preprocessing, fields.get("preprocessing"))):
        for field in dataclasses.fields(kind):
            if isinstance(stored, dict) and field.name not in {*stored, "held_out"}:
                raise InputError(f"{problem}: {field.name} must be given, got none")
    return parse_json(content, card_type, problem)
