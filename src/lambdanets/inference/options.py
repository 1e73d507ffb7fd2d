"""The options that the tasks add to `lambdanets predict`. They do not import PyTorch, so that --help is fast."""

from typing import Literal

from pydantic import PositiveInt

from lambdanets.records import Fraction, TileSize, record


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

    def tile_size_for(self, default: int | None) -> int | None:
        """Return the side of the tiles; None for no tiles. default: of the model."""
        return default if self.tile_size is None else self.tile_size or None


@record
class DetectorOptions(MaskOptions):
    """Detection."""

    score: Fraction = 0.5
    """Minimum score of the objects that are counted, drawn, and in label images and objects.csv; results.json has all
    detections."""
    labels: bool = True
    """Write label images and objects.csv."""
