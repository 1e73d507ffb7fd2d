"""The detection recipe: Mask R-CNN with a feature pyramid, trained on annotations in COCO format."""

import dataclasses
from typing import ClassVar

from lambdanets.bounds import Range
from lambdanets.errors import InputError
from lambdanets.training.coco.recipe import CocoRecipe


@dataclasses.dataclass(frozen=True)
class DetectionRecipe(CocoRecipe):
    """Hyperparameters of Mask R-CNN training."""

    task: ClassVar[str] = "detection"
    RANGES: ClassVar[dict[str, Range]] = CocoRecipe.RANGES | {
        "image_size": Range(4, 10_000),
        **dict.fromkeys(
            ("max_objects", "pyramid_channels", "proposals", "sampled_regions", "max_detections"), Range(1)
        ),
        "mask_layers": Range(0),
        **dict.fromkeys(("anchor_scale", "aspect_ratios"), Range(above=0)),
        "drop_path": Range(0, 1),
    }

    epochs: int = 12
    """Number of epochs."""
    batch_size: int = 8
    """Global batch size: images per step over all ranks."""
    learning_rate: float = 0.02
    """Peak learning rate, reached after the warm-up. It is not scaled with the batch size."""
    warmup_epochs: float = 1.0
    """Epochs of linear learning rate warm-up from 0."""
    weight_decay: float = 4e-5
    """Weight decay, except for norm layers, biases and embedding tables."""

    image_size: int = 1024
    """Longer side of an image after resizing, in pixels. In training it is multiplied by a random factor (--jitter)."""
    max_objects: int = 300
    """Maximum number of objects per training image. If an image has more, each epoch uses a random subset."""
    levels: tuple[int, ...] = (1, 2, 3, 4)
    """Feature maps of the backbone that the feature pyramid uses. Level 0 has stride 2, level 1 stride 4, and so on."""
    pyramid_channels: int = 256
    """Channels of the feature pyramid."""
    box_layers: tuple[int, int] = (4, 1024)
    """Box head: number of 3x3 convolutions and width of the fully connected layer."""
    mask_layers: int = 4
    """Mask head: number of 3x3 convolutions."""
    anchor_scale: float = 8.0
    """Side of the anchors, as a multiple of the stride of their level."""
    aspect_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Aspect ratios of the anchors: height divided by width."""
    proposals: int = 1000
    """Proposals per image that the region proposal network keeps after non-maximum suppression."""
    sampled_regions: int = 512
    """Proposals per image that the heads are trained on. At most a quarter of them are positive."""
    max_detections: int = 100
    """Maximum number of detections per image."""
    drop_path: float = 0.0
    """Stochastic depth rate of the last block of the backbone. The rate increases linearly over the blocks."""
    hide_padding: bool = True
    """Mask padding in every layer, so that it has no effect. Backbones with attention need --no-hide-padding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compile:
            raise InputError("compile must be False for detection: its images differ in size from batch to batch")
        if not self.levels:
            raise InputError("levels must be one or more numbers, got none")
        if not self.aspect_ratios:
            raise InputError("aspect_ratios must be one or more numbers, got none")
        if min(self.box_layers) < 0 or self.box_layers[1] < 1:
            raise InputError(f"box_layers must be two numbers, at least 0 and at least 1, got {self.box_layers}")
