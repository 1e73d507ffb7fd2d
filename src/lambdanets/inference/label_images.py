"""Label images and measurements of detected objects, as microscopy software reads them."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.files import atomic_open
from lambdanets.inference.detections import Detections

MAX_UINT16 = 65_535
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
_DIGITS = 4  # after the decimal point
COLUMNS = ("image", "object", "class", "score", *list(_PROPERTIES.values())[1:])


def make_label_image(objects: Detections, min_score: float) -> tuple[np.ndarray, Detections]:
    """Return a label image (H, W) and its objects: pixels with the value i show the object i - 1.

    min_score: minimum score of the objects to include.

    0 is background. Where masks overlap, a pixel belongs to the object with the highest score. Objects that are
    completely covered are left out, and labels are consecutive, in descending order of score. The dtype is uint16, or
    int32 for more than 65,535 objects.
    """
    scores = objects.scores.numpy()
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= min_score]
    image = np.zeros(objects.size, np.int32)
    for number in range(len(order), 0, -1):
        top, left, mask = objects.crops[order[number - 1]]
        image[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = number
    is_visible = np.zeros(len(order) + 1, bool)
    is_visible[image.ravel()] = True
    is_visible[0] = False  # background
    labels = np.cumsum(is_visible).astype(np.uint16 if is_visible.sum() <= MAX_UINT16 else np.int32)
    labels[~is_visible] = 0
    return labels[image], objects.select(order[np.flatnonzero(is_visible) - 1].tolist())


def measure_objects(image: Image.Image, labels: np.ndarray, objects: Detections) -> list[dict[str, Any]]:
    """Return one row per object of the label image of an image, with all `COLUMNS` except "image".

    scikit-image measures them. Intensities are those of the image in gray, from 0 to 255. Lengths are in pixels: area,
    centroid (row, column), box (top, left, bottom, right; the last two exclusive), diameter of the circle of the same
    area, eccentricity of the ellipse of the same second moments.
    """
    from skimage.measure import regionprops_table  # `make_label_image` needs no extra

    measured = dict.fromkeys(name.partition("-")[0] for name in _PROPERTIES)
    table = regionprops_table(labels, np.asarray(image.convert("L")), properties=list(measured))
    columns = {
        "class": objects.class_names,
        "score": [round(score, _DIGITS) for score in objects.scores.tolist()],
        **{column: table[name].round(_DIGITS).tolist() for name, column in _PROPERTIES.items()},
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def label_image_name(name: str, labels: np.ndarray) -> str:
    """Return the file name of a label image: NAME.png with 16 bits, or NAME.tif with 32 bits."""
    return f"{name}.png" if labels.dtype == np.uint16 else f"{name}.tif"


def save_label_image(labels: np.ndarray, path: Path) -> None:
    """Write a label image to a path from `label_image_name`, atomically. Creates its folder."""
    path.parent.mkdir(exist_ok=True)
    with atomic_open(path) as file:
        Image.fromarray(labels).save(file, "PNG" if path.suffix == ".png" else "TIFF")
