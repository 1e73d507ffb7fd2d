"""The recipe of detection: Mask R-CNN with a feature pyramid, trained on COCO-format annotations."""

import dataclasses
from typing import ClassVar

from lambdanets.bounds import Range
from lambdanets.errors import InputError
from lambdanets.training.recipe import TrainingRecipe


@dataclasses.dataclass(frozen=True)
class DetectionRecipe(TrainingRecipe):
    """Hyperparameters of Mask R-CNN's training."""

    task: ClassVar[str] = "detection"
    PATHS: ClassVar[tuple[str, ...]] = ("data", "images", "validation_data", "validation_images", "weights")
    REQUIRED: ClassVar[tuple[str, ...]] = PATHS
    FREE: ClassVar[tuple[str, ...]] = (*PATHS[:4], *TrainingRecipe.FREE)

    RANGES: ClassVar[dict[str, Range]] = TrainingRecipe.RANGES | {
        "image_size": Range(4, 10_000),
        **dict.fromkeys(("training_images", "max_objects", "pyramid_channels"), Range(1)),
        **dict.fromkeys(("proposals", "sampled_regions", "detections"), Range(1)),
        "mask_layers": Range(0),
        **dict.fromkeys(("anchor_scale", "aspect_ratios", "std"), Range(above=0)),
        **dict.fromkeys(("flip", "drop_path"), Range(0, 1)),
    }

    data: str = ""
    """COCO-format JSON file of instances to train on; or 'digits', scanned digits scattered over images."""
    images: str | None = None
    """Images of --data: a folder or an uncompressed tar."""
    validation_data: str | None = None
    """COCO-format JSON file of instances to validate on; 'digits' has its own."""
    validation_images: str | None = None
    """Images of --validation-data; those of --images if none."""
    training_images: int | None = None
    """Train on a random subset of this size; on all images if none."""
    epochs: int = 12
    """Number of epochs."""
    batch_size: int = 8
    """Global batch size, over all ranks."""
    learning_rate: float = 0.02
    """Peak learning rate, after the warm-up; not scaled with the batch size."""
    warmup_epochs: float = 1.0
    """Epochs of linear warm-up from 0."""
    weight_decay: float = 4e-5
    """Weight decay, except for norm layers, biases and embedding tables."""

    image_size: int = 1024
    """Side of the square inputs, pixels, to which the longer side is resized, in training times the random jitter."""
    jitter: tuple[float, float] = (0.8, 1.25)
    """Range of the random scale in training."""
    flip: float = 0.5
    """Probability of a horizontal flip in training."""
    max_objects: int = 300
    """Maximum objects per training image; of more, a random subset at each pass."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean for normalization of pixels in [0, 1], one number per channel."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation for normalization, one number per channel."""

    levels: tuple[int, ...] = (1, 2, 3, 4)
    """Feature maps of the backbone that the feature pyramid takes, counted from 0 (stride 2)."""
    pyramid_channels: int = 256
    """Channels of the feature pyramid."""
    box_layers: tuple[int, int] = (4, 1024)
    """Box head: number of 3x3 convolutions, and width of the fully connected layer."""
    mask_layers: int = 4
    """Mask head: number of 3x3 convolutions."""
    anchor_scale: float = 8.0
    """Side of the anchors, in strides of their level."""
    aspect_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Aspect ratios of the anchors, height over width."""
    proposals: int = 1000
    """Proposals per image that the region proposal network keeps after non-maximum suppression."""
    sampled_regions: int = 512
    """Proposals per image that the heads are trained on, at most a quarter of them positive."""
    detections: int = 100
    """Maximum detections per image."""
    drop_path: float = 0.0
    """Maximum stochastic depth rate of the backbone, of its last block."""
    hide_padding: bool = True
    """Mask padding in all layers, so that it has no effect. False for backbones that cannot, as with attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compile:
            raise InputError("compile must be False for detection: its images differ in size from batch to batch")
        if not 0 < self.jitter[0] <= self.jitter[1]:
            raise InputError(f"jitter must be two positive numbers, the smaller first, got {self.jitter}")
        if not self.levels:
            raise InputError("levels must be at least one, got none")
        if not self.aspect_ratios:
            raise InputError("aspect_ratios must be at least one, got none")
        if min(self.box_layers) < 0 or self.box_layers[1] < 1:
            raise InputError(f"box_layers must be at least 0 and 1, got {self.box_layers}")
        if self.data not in ("digits", "") and (self.images is None or self.validation_data is None):
            missing = "images" if self.images is None else "validation_data"
            raise InputError(f"{missing} must be given with data {self.data!r}, got none")
        given = [name for name in ("images", "validation_data", "validation_images") if getattr(self, name) is not None]
        if self.data == "digits" and given:
            raise InputError(
                f"data must be a JSON file of instances where {given[0]} is {getattr(self, given[0])!r}; got 'digits', "
                "which brings its own images"
            )
