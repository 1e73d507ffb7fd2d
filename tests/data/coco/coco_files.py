"""Writes small COCO files and their images, for tests."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanets.data.coco.annotations import Object
from lambdanets.data.coco.segmentations import to_cropped_mask

SQUARE = [2, 3, 8, 3, 8, 9, 2, 9]  # the outline of BOX as a polygon, which annotations have by default
BOX = [2, 3, 6, 6]


def image(number: int, name: str | None = None, height: int = 20, width: int = 30) -> dict[str, Any]:
    return {"id": number, "file_name": name or f"{number}.png", "height": height, "width": width}


def annotation(number: int, image_id: int = 1, **fields: Any) -> dict[str, Any]:
    defaults = {"id": number, "image_id": image_id, "category_id": 7, "bbox": BOX, "area": 36, "iscrowd": 0}
    return defaults | {"segmentation": [SQUARE]} | fields


def rectangle(number: int, left: float, top: float, right: float, bottom: float, **fields: Any) -> dict[str, Any]:
    """The annotation of a filled rectangle."""
    box, outline = [left, top, right - left, bottom - top], [left, top, right, top, right, bottom, left, bottom]
    return annotation(number, bbox=box, area=box[2] * box[3], segmentation=[outline], **fields)


def content(*annotations: dict[str, Any], images: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "images": [image(1), image(2)] if images is None else images,
        "annotations": list(annotations),
        "categories": [{"id": 7, "name": "seven"}, {"id": 3, "name": "three"}],
    }


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def write(path: Path, value: Any) -> Path:
    path.write_bytes(to_json(value))
    return path


def png(height: int = 20, width: int = 30, value: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((height, width), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def decode_mask(obj: Object, height: int, width: int) -> np.ndarray:
    """Decode the mask of an object, uint8 (height, width), 1 inside."""
    top, left, cropped = to_cropped_mask(obj.segmentation, height, width)
    mask = np.zeros((height, width), np.uint8)
    mask[top:, left:][: cropped.shape[0], : cropped.shape[1]] = cropped
    return mask
