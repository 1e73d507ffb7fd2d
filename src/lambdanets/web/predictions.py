"""Predictions of a model for one image: classes with probabilities, or objects with files to download."""

import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detection_figures import draw_predicted
from lambdanets.inference.detector import Detector
from lambdanets.inference.label_images import COLUMNS, label_and_measure, label_image_name
from lambdanets.inference.objects import crop_objects
from lambdanets.inference.tiled_detection import detect_tiled
from lambdanets.inference.tiles import is_tiled
from lambdanets.interpretability.explanation import Explanation, explain
from lambdanets.text_tables import csv_table

MIN_SCORE = 0.5  # of the objects that are shown, as in `lambdanets detect predict`
TOP_K = 5  # classes
MAX_TILED_PIXELS = 1_000_000  # limit for tiled inference, whose time is proportional to the number of pixels


@dataclass(frozen=True, eq=False)
class DetectedObjects:
    """Objects with a score of at least MIN_SCORE.

    rows: measurements of each object, by the names in `label_images.COLUMNS`. overlay: the image with the objects drawn
    on it. files: name and content of the files to download: label image, table and overlay.
    """

    rows: list[dict[str, Any]]
    overlay: Image.Image
    files: dict[str, bytes]


@dataclass(frozen=True, eq=False)
class ImagePrediction:
    """The prediction of a model for an image.

    top: names and probabilities of the most probable classes; None for a detector. objects: None for a classifier.
    explanation: explanation of its 2-d lambda layers; None if it has none. shares: mean share of the position term, by
    layer.
    """

    name: str
    image: Image.Image
    top: list[tuple[str, float]] | None
    objects: DetectedObjects | None
    explanation: Explanation | None
    shares: dict[str, float]

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the lambda layers that can be shown."""
        return tuple(self.shares)


def predict_image(source: Classifier | Detector, image: Image.Image, name: str) -> ImagePrediction:
    """Run a model on an image of mode "L" or "RGB". name: name of the image.

    Raises InputError for an image with more than MAX_TILED_PIXELS if the model divides it into tiles.
    """
    tile_size = source.card.tile_size if isinstance(source, Detector) else None
    if is_tiled(image.size, tile_size) and image.width * image.height > MAX_TILED_PIXELS:
        raise InputError(
            f"the image must have at most {MAX_TILED_PIXELS:,} pixels for this model, got {image.width} x "
            f"{image.height}; use lambdanets detect predict for larger ones"
        )
    try:
        explanation = explain(source, image)
    except InputError:  # no lambda layer
        explanation = None
    top, objects = None, None
    if isinstance(source, Classifier):
        top = source.predict(image)[0].top(TOP_K)
    else:
        objects = _detect_objects(source, image, name, explanation)
    if explanation is None:
        return ImagePrediction(name, image, top, objects, None, {})
    map_layers = [layer for layer, call in explanation.calls.items() if len(call.sides) == 2]
    shares = {layer: float(explanation.position_share(layer).mean()) for layer in map_layers}
    kept = replace(explanation, output=None)  # the masks of a detector are large
    return ImagePrediction(name, image, top, objects, kept if shares else None, shares)


def _detect_objects(
    detector: Detector, image: Image.Image, name: str, explanation: Explanation | None
) -> DetectedObjects:
    """Detect objects as `lambdanets detect predict` does, or reuse those of the explanation."""
    tile_size = detector.card.tile_size
    if tile_size is not None and is_tiled(image.size, tile_size):
        detected = detect_tiled(detector, image, tile_size)
    elif explanation is not None:
        detected = crop_objects(explanation.output[0])
    else:
        detected = crop_objects(detector.detect([image_to_tensor(image)])[0])
    detected = detected.above(MIN_SCORE)
    labels, rows = label_and_measure(image, detected, detector.classes, MIN_SCORE)
    overlay = draw_predicted(image, detected, detector.classes, MIN_SCORE)
    return DetectedObjects(rows, overlay, _files(name, labels, rows, overlay))


def _files(name: str, labels: np.ndarray, rows: list[dict[str, Any]], overlay: Image.Image) -> dict[str, bytes]:
    label_name = label_image_name("labels", labels)
    table = [COLUMNS, *([name, *(row[column] for column in COLUMNS[1:])] for row in rows)]
    return {
        label_name: encode(Image.fromarray(labels), "PNG" if label_name.endswith("png") else "TIFF"),
        "objects.csv": csv_table(table).encode("utf-8", "backslashreplace"),
        "overlay.png": encode(overlay),
    }


def encode(image: Image.Image, image_format: str = "PNG") -> bytes:
    """Return the content of an image file."""
    content = io.BytesIO()
    image.save(content, image_format)
    return content.getvalue()
