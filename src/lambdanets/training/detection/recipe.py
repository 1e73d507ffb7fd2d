"""The detection recipe: Mask R-CNN with a feature pyramid, trained on annotations in COCO format."""

import dataclasses
from typing import ClassVar

from lambdanets.bounds import Range
from lambdanets.errors import InputError
from lambdanets.training.recipe import TrainingRecipe


@dataclasses.dataclass(frozen=True)
class DetectionRecipe(TrainingRecipe):
    """Hyperparameters of Mask R-CNN training."""

    task: ClassVar[str] = "detection"
    PATHS: ClassVar[tuple[str, ...]] = ("data", "images", "validation_data", "validation_images", "weights")
    REQUIRED: ClassVar[tuple[str, ...]] = PATHS
    CHANGEABLE: ClassVar[tuple[str, ...]] = (*PATHS[:4], *TrainingRecipe.CHANGEABLE)

    RANGES: ClassVar[dict[str, Range]] = TrainingRecipe.RANGES | {
        "image_size": Range(4, 10_000),
        **dict.fromkeys(("training_images", "max_objects", "pyramid_channels"), Range(1)),
        **dict.fromkeys(("proposals", "sampled_regions", "max_detections"), Range(1)),
        "mask_layers": Range(0),
        **dict.fromkeys(("anchor_scale", "aspect_ratios", "std"), Range(above=0)),
        **dict.fromkeys(("flip", "drop_path"), Range(0, 1)),
    }

    data: str = ""
    """Training annotations: a JSON file in COCO format, or 'digits' for scanned digits scattered over images."""
    images: str | None = None
    """Training images: a folder or an uncompressed tar."""
    validation_data: str | None = None
    """Validation annotations: a JSON file in COCO format. Not used with --data digits."""
    validation_images: str | None = None
    """Validation images: a folder or an uncompressed tar. If none, they are looked up in --images."""
    training_images: int | None = None
    """Number of training images to use, chosen at random. If none, all are used."""
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
    jitter: tuple[float, float] = (0.8, 1.25)
    """Range of the random scale factor in training."""
    flip: float = 0.5
    """Probability of a horizontal flip in training."""
    max_objects: int = 300
    """Maximum number of objects per training image. If an image has more, each epoch uses a random subset."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean for normalizing pixels in [0, 1], one number per channel."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation for normalizing pixels in [0, 1], one number per channel."""

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
        if not 0 < self.jitter[0] <= self.jitter[1]:
            raise InputError(f"jitter must be two positive numbers, the smaller first, got {self.jitter}")
        if not self.levels:
            raise InputError("levels must be one or more numbers, got none")
        if not self.aspect_ratios:
            raise InputError("aspect_ratios must be one or more numbers, got none")
        if min(self.box_layers) < 0 or self.box_layers[1] < 1:
            raise InputError(f"box_layers must be two numbers, at least 0 and at least 1, got {self.box_layers}")
        if self.data not in ("digits", "") and (self.images is None or self.validation_data is None):
            missing = "images" if self.images is None else "validation_data"
            raise InputError(f"{missing} must be set with data {self.data!r}, got none")
        paths = [name for name in ("images", "validation_data", "validation_images") if getattr(self, name) is not None]
        if self.data == "digits" and paths:
            raise InputError(
                f"{paths[0]} must not be set with data 'digits', which has its own images, "
                f"got {getattr(self, paths[0])!r}"
            )
