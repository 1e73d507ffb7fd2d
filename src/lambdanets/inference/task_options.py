"""The options that the tasks add to `lambdanets predict` and `lambdanets evaluate`.

They do not import PyTorch, so that --help is fast. Those of evaluate are the parameters of a predictor's `evaluator`.
"""

from typing import Literal

from pydantic import PositiveInt

from lambdanets.records import Fraction, TileSize, record

MIN_SCORE = 0.5  # objects with lower scores are neither drawn nor counted


@record
class NoOptions:
    """No options."""


@record
class ClassifierOptions:
    """Classification."""

    top: PositiveInt = 3
    """Number of most probable classes to report per image."""


@record
class MaskOptions:
    """Detection and segmentation."""

    figures: bool = True
    """Draw the objects or classes of each image."""
    tile_size: TileSize | Literal[0] | None = None
    """Side in pixels of overlapping tiles for images of more than two tiles; 0 for no tiles; by default the model's, if
    it has one. A segmentation without tiles needs about 0.5 GB of memory per megapixel."""


@record
class DetectorOptions(MaskOptions):
    """Detection."""

    score: Fraction = MIN_SCORE
    """Minimum score of the objects that are counted, drawn, and in label images and objects.csv; results.json has all
    detections."""


@record
class LabeledData:
    """Labeled images."""

    data: str | None = None
    """Labeled images; by default those of the run. For a classifier, a dataset with the same classes: its validation
    split, or all images if it has none. For others, a COCO-format JSON file of instances with the same categories."""


@record
class ClassifierData(LabeledData):
    """Classification."""

    data_root: str | None = None
    """Root folder of a timm dataset, such as torch/cifar10."""


@record
class CocoData(LabeledData):
    """Detection and segmentation."""

    images: str | None = None
    """The images of --data: a folder or an uncompressed tar."""
