"""The fields that build a network, which recipes and model cards share.

The defaults are those of recipes. `parse_card` requires these fields, since the default of a later version could be
another network.
"""

import dataclasses
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, Strict

from lambdanets.records import Several, record

ModelOptions = dict[str, bool | int | float | str | list[Any]]  # lists, as in folders of timm
Normalization = Annotated[tuple[float, float, float], Strict(False)]
Deviation = Annotated[tuple[PositiveFloat, PositiveFloat, PositiveFloat], Strict(False)]


@record
class Architecture:
    """The network."""

    model: str = ""
    """Model name, from lambdanets or timm."""
    model_options: ModelOptions = dataclasses.field(default_factory=dict)
    """Keyword arguments of the model as pairs of name and value, for example: scope 7 content False."""


@record
class AnnotatedData:
    """Data with annotations in COCO format, and its normalization."""

    data: str = ""
    """Training annotations: a JSON file in COCO format, or 'digits' for scanned digits scattered over images."""
    images: str | None = None
    """Training images: a folder or an uncompressed tar."""
    validation_data: str | None = None
    """Validation annotations: a JSON file in COCO format. Not used with --data digits."""
    validation_images: str | None = None
    """Validation images: a folder or an uncompressed tar. If none, they are looked up in --images."""
    mean: Normalization = (0.485, 0.456, 0.406)
    """Mean for normalizing pixels in [0, 1], one number per channel."""
    std: Deviation = (0.229, 0.224, 0.225)
    """Standard deviation for normalizing pixels in [0, 1], one number per channel."""


@record
class DetectorArchitecture(Architecture):
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
