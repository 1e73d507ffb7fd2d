"""A recipe of detection: Mask R-CNN on a feature pyramid, trained on images annotated as COCO's are."""

import dataclasses
from typing import ClassVar

from lambdanets.bounds import Range
from lambdanets.errors import InputError
from lambdanets.training.recipe import Schedule, TrainingRecipe


@dataclasses.dataclass(frozen=True)
class DetectionRecipe(TrainingRecipe):
    """How to train a detector, and on what. The defaults are the digits recipe's; others change fields of it."""

    task: ClassVar[str] = "detection"
    PLACES: ClassVar[tuple[str, ...]] = ("data", "images", "validation_data", "validation_images", "weights")
    TO_GIVE: ClassVar[tuple[str, ...]] = PLACES
    FREE: ClassVar[tuple[str, ...]] = (
        "data",
        "images",
        "validation_data",
        "validation_images",
        *TrainingRecipe.FREE,
    )

    RANGES: ClassVar[dict[str, Range]] = TrainingRecipe.RANGES | {
        "image_size": Range(4, 10_000),
        **dict.fromkeys(("training_images", "max_objects", "pyramid_channels"), Range(1)),
        **dict.fromkeys(("proposals", "sampled_regions", "detections"), Range(1)),
        "mask_layers": Range(0),
        **dict.fromkeys(("anchor_scale", "aspect_ratios", "std"), Range(above=0)),
        **dict.fromkeys(("flip", "drop_path"), Range(0, 1)),
    }

    data: str = "digits"
    """'digits', scanned digits scattered over images; or instances in COCO's format to train on, a JSON file."""
    images: str | None = None
    """The images that data tells of: a folder, or an uncompressed tar."""
    validation_data: str | None = None
    """Instances to validate on, a JSON file; beside 'digits' there are some."""
    validation_images: str | None = None
    """Their images; by default those of images."""
    training_images: int | None = None
    """Train on so many of the images, drawn with the seed; on all if none."""

    model: str = "lambda_resnet20_small"
    """The backbone, a model of this package or of timm."""
    epochs: int = 12
    """Passes over the training images."""
    batch_size: int = 8
    """Global batch size, over all processes."""
    learning_rate: float = 0.02
    """Peak, reached after the warm-up."""
    schedule: Schedule = "cosine"
    warmup_epochs: float = 2.0
    """Linear from 0."""
    weight_decay: float = 4e-5
    """Not on norms, biases and embedding tables."""
    clip_gradient: float | None = 10.0
    """Largest norm of the gradient."""

    image_size: int = 128
    """Side of the square that images are fitted into: the longer side of an image in evaluation; in training that times
    a random scale, of which a square of this side is cropped."""
    jitter: tuple[float, float] = (0.8, 1.25)
    """The random scale."""
    flip: float = 0.0
    """Probability of a left-right flip in training."""
    max_objects: int = 300
    """Objects of an image to learn from at a time; of more, so many are drawn anew each time."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted from pixels in [0, 1], a number for each colour."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Divides them then."""

    levels: tuple[int, ...] = (2, 3, 4)
    """Maps of the backbone that the pyramid takes, numbered from 0, the finest first."""
    pyramid_channels: int = 64
    """Of each level."""
    box_layers: tuple[int, int] = (0, 128)
    """3x3 convolutions of the box head, and width of the layer behind them."""
    mask_layers: int = 2
    """3x3 convolutions of the mask head."""
    anchor_scale: float = 4.0
    """Side of a level's anchors in its strides."""
    aspect_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Heights of anchors over their widths."""
    proposals: int = 500
    """Regions of an image that the pyramid proposes and the heads look at."""
    sampled_regions: int = 128
    """Of those, the regions that the heads learn from, a quarter of them objects where there are so many."""
    detections: int = 100
    """Objects to find in an image at most; average precision counts so many."""
    drop_path: float = 0.0
    """Largest stochastic depth rate of the backbone."""
    hide_padding: bool = True
    """Keep what an image's batch is padded with from changing what is found in it; False for networks, such as those
    with attention, in which that cannot be."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compile:
            raise InputError("compile must be False for detection: its images differ in size from batch to batch")
        if not 0 < self.jitter[0] <= self.jitter[1]:
            raise InputError(f"jitter must be two positive numbers, the smaller first, got {self.jitter}")
        if not self.levels:
            raise InputError("levels must be one at least, got none")
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
