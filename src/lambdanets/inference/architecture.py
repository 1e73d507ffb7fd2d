"""The fields that build a network, which recipes and model cards share.

The defaults are those of recipes. `read_card` requires these fields, since the default of a later version could be
another network.
"""

import dataclasses
from typing import Annotated, Any

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, Strict

from lambdanets.errors import InputError
from lambdanets.records import Several, record


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    if invalid := sorted({"num_classes", "in_chans"} & options.keys()):
        raise InputError(f"model_options must not have {', '.join(invalid)}, which the data and the recipe determine")
    return options


# lists, as in folders of timm
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
        from lambdanets.models.factory import check_architecture  # here, so that recipes do not import PyTorch

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
