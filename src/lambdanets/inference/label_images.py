"""Label images and measurements of detected objects, as microscopy software reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from skimage.measure import regionprops_table
from torch import Tensor

from lambdanets.files import atomic_open

MAX_OBJECTS = 65_535  # in a label image with 16 bits
# Columns of the table, by property of scikit-image's regionprops.
_PROPERTIES = {
    "label": "object",
    "area": "area",
    "centroid-0": "row",
    "centroid-1": "column",
    "bbox-0": "top",
    "bbox-1": "left",
    "bbox-2": "bottom",
    "bbox-3": "right",
    "equivalent_diameter_area": "diameter",
    "eccentricity": "eccentricity",
    "intensity_mean": "mean_intensity",
    "intensity_min": "min_intensity",
    "intensity_max": "max_intensity",
}
COLUMNS = ("image", "object", "class", "score", *list(_PROPERTIES.values())[1:])


def make_label_image(detections: dict[str, Tensor], min_score: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a label image (H, W) uint16 and the indices of its objects: pixels with i show detection indices[i - 1].

    detections: as `Detector.detect` returns them. min_score: of the detections to include.

    0 is background. Where masks overlap, the object with the highest score has the pixel. Objects without a pixel of
    their own are left out, so the labels are consecutive, in descending order of score.
    """
    scores = detections["scores"].numpy()
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= min_score][:MAX_OBJECTS]
    image = np.zeros(detections["masks"].shape[-2:], np.uint16)
    for number in range(len(order), 0, -1):
        mask = detections["masks"][order[number - 1]]
        image[(mask.reshape(image.shape) > 0.5).numpy()] = number
    visible, consecutive = np.unique(image, return_inverse=True)
    if visible[0]:  # no background
        consecutive, visible = consecutive + 1, np.concatenate([[0], visible])
    return consecutive.reshape(image.shape).astype(np.uint16), order[visible[1:].astype(int) - 1]


def measure_objects(labels: np.ndarray, intensity: np.ndarray) -> list[dict[str, Any]]:
    """Return one row per object of a label image (H, W), in order of the labels, as measured by scikit-image.

    intensity: (H, W). Lengths are in pixels: area, centroid (row, column), box (top, left, bottom, right; the last two
    exclusive), diameter of the circle of the same area, eccentricity of the ellipse of the same second moments.
    """
    names = [name for name in _PROPERTIES if not name.startswith(("centroid", "bbox"))]
    table = regionprops_table(labels, intensity, properties=[*names, "centroid", "bbox"])
    columns = {column: table[name].tolist() for name, column in _PROPERTIES.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def label_and_measure(
    image: Image.Image, detections: dict[str, Tensor], classes: Sequence[str], min_score: float
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the label image of the detections in an image, and a row with `COLUMNS`, but "image", for each object.

    Intensities are those of the image in gray, from 0 to 255.
    """
    labels, indices = make_label_image(detections, min_score)
    rows = measure_objects(labels, np.asarray(image.convert("L")))
    names = [classes[int(detections["labels"][index]) - 1] for index in indices]
    scores = [float(detections["scores"][index]) for index in indices]
    return labels, [
        {"class": name, "score": score, **row} for name, score, row in zip(names, scores, rows, strict=True)
    ]


def save_label_image(labels: np.ndarray, path: Path) -> None:
    """Write a label image as a PNG of 16 bits, atomically. Creates its folder."""
    path.parent.mkdir(exist_ok=True)
    with atomic_open(path) as file:
        Image.fromarray(labels).save(file, "PNG")
