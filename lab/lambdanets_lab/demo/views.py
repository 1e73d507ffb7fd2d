"""What the page shows for an image, as JSON: the prediction of a model, and the attention maps of one position."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from PIL import Image
from pydantic import Field

from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detections import COLUMNS, MIN_SCORE, Detections, measure_objects
from lambdanets.inference.detector import Detector
from lambdanets.inference.figures import brighten, overlay, overlay_classes
from lambdanets.inference.segmenter import Segmenter
from lambdanets.inference.tiles import is_tiled
from lambdanets.layers.base import LambdaBase
from lambdanets.records import check
from lambdanets.terminal import csv_table, plural
from lambdanets_lab.explain import figures
from lambdanets_lab.explain.explanation import Explanation, explain

Model = Classifier | Detector | Segmenter
TOP_K = 5  # classes
SHOWN_SIDE = 960  # longer side in pixels of the image on the page; files to download have all pixels
_MEDIA_TYPES = {"png": "image/png", "csv": "text/csv", "tif": "image/tiff"}


@dataclass(frozen=True, eq=False)
class ImagePrediction:
    """The prediction for an image. summary: what the page shows. explanation: None for a model without lambda layers
    on maps."""

    image: Image.Image
    summary: dict[str, Any]
    explanation: Explanation | None


def predict_image(model: Model, image: Image.Image, name: str) -> ImagePrediction:
    """Run a model on an image of mode "L" or "RGB" that is already stretched. name: its name in objects.csv."""
    explanation = None
    if not isinstance(model, Segmenter) and any(isinstance(layer, LambdaBase) for layer in model.model.modules()):
        explanation = explain(model, image, stretch=False)
    if isinstance(model, Classifier):
        result = _classes(model, image)
    elif isinstance(model, Detector):
        result = _objects(model, image, name, explanation)
    else:
        result = _pixels(model, image)
    layers = [] if explanation is None else _layers(explanation)
    about = f"{image.width} x {image.height} pixels, {'gray' if image.mode == 'L' else 'color'}"
    size = {"height": image.height, "width": image.width, "about": about}
    return ImagePrediction(image, result | size | {"layers": layers}, explanation if layers else None)


def _classes(model: Classifier, image: Image.Image) -> dict[str, Any]:
    top = model.infer([image])[0].top(TOP_K)
    bars = [{"name": name, "value": value, "text": _percent(value)} for name, value in top]
    headline = f"Class {bars[0]['name']}, with probability {bars[0]['text']}"
    return {"headline": headline, "bars": bars, "image": image_url(brighten(image))}


def _objects(model: Detector, image: Image.Image, name: str, explanation: Explanation | None) -> dict[str, Any]:
    """Detect objects as `lambdanets predict` does, or take those of the explanation."""
    if explanation is not None and not is_tiled(image.size, model.tile_side()):
        detected = Detections.from_outputs(explanation.output[0], model.classes)
    else:
        detected = model.infer([image])[0]
    labels, visible = detected.label_image(MIN_SCORE)
    rows = measure_objects(image, labels, visible)
    names = sorted({row["class"] for row in rows})
    counts = [(name, sum(row["class"] == name for row in rows)) for name in names] if len(names) > 1 else []
    drawn = overlay(image, labels, visible)
    label_name, image_format = ("labels.png", "PNG") if labels.dtype == np.uint16 else ("labels.tif", "TIFF")
    table = [COLUMNS, *([name, *(row[column] for column in COLUMNS[1:])] for row in rows)]
    files = {
        label_name: _encode(Image.fromarray(labels), image_format),
        "objects.csv": csv_table(table).encode("utf-8", "backslashreplace"),
        "overlay.png": _encode(drawn),
    }
    columns = ("object", *(("class",) if counts else ()), "score", "area", "row", "column", "diameter")
    return {
        "headline": plural(len(rows), "object") + (f" of class {names[0]}" if len(names) == 1 else ""),
        "note": f"Counted are the objects in objects.csv: with a score of at least {MIN_SCORE:g}, and not completely "
        "covered by others.",
        "bars": [{"name": name, "value": count / len(rows), "text": str(count)} for name, count in counts],
        "columns": columns,
        "rows": [[_cell(column, row[column]) for column in columns] for row in rows],
        "image": image_url(drawn),
        "files": _file_urls(files),
    }


def _pixels(model: Segmenter, image: Image.Image) -> dict[str, Any]:
    segmentation = model.infer([image])[0]
    labels = segmentation.labels.numpy()
    drawn = overlay_classes(image, labels)
    bars = [
        {"name": name, "value": count / labels.size, "text": f"{_percent(count / labels.size)}, {count:,} pixels"}
        for name, count in segmentation.pixels
    ]
    headline = f"{_percent(float((labels > 0).mean()))} of the pixels are not background"
    files = {"classes.png": _encode(Image.fromarray(labels)), "overlay.png": _encode(drawn)}
    return {"headline": headline, "bars": bars, "image": image_url(drawn), "files": _file_urls(files)}


def _layers(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the lambda layers on maps; first those with the most positions, whose maps show the most."""
    last_first = reversed(explanation.calls.items())
    calls = {name: call for name, call in last_first if len(call.sides) == 2}
    return [
        {
            "name": name,
            "heads": calls[name].layer.heads,
            "label": f"{name.removeprefix('backbone.network.')}: {calls[name].sides[0]} x {calls[name].sides[1]} "
            f"positions, {_percent(float(explanation.position_share(name).mean()))} by position",
        }
        for name in sorted(calls, key=lambda name: -np.prod(calls[name].sides))
    ]


def attention_maps(prediction: ImagePrediction, layer: str, head: int, at: tuple[int, int]) -> dict[str, Any]:
    """Return the attention maps of one head at a pixel (row, column), drawn over the image, and their numbers as text.

    Content and position weights have a color scale each.

    Raises InputError for an unknown layer or head, and for a pixel outside of the model's input.
    """
    explanation, image = prediction.explanation, prediction.image
    heads = {row["name"]: row["heads"] for row in prediction.summary["layers"]}
    if explanation is None or layer not in heads:
        raise InputError(f"layer must be one of {', '.join(heads) or 'none'}, got {layer!r}")
    check("head", head, Annotated[int, Field(ge=0, lt=heads[layer])])
    call, view = explanation.calls[layer], explanation.view
    assert view is not None
    weights = [maps[head] for maps in figures.attention_weights(explanation.attention_map(layer, at))]
    largest = [float(np.abs(values).max()) for values in weights]
    content, position = (
        figures.panel_image(values, (-(limit or 1.0), limit or 1.0), view, image, colors=figures.SIGNED_COLORS, at=at)
        for values, limit in zip(weights, largest, strict=True)
    )
    shares = explanation.position_share(layer).cpu().numpy()
    blank = Image.new("L", image.size, 255)  # the image would look like a pattern of the shares
    field = explanation.receptive_field(layer, at)
    assert field.view is not None
    is_whole = field.box == tuple((0, side) for side in field.gradient.shape)
    share = float(shares[view.position(at, shares.shape)])
    panels = {
        "content": content,
        "position": position,
        "share": figures.panel_image(shares, (0, 1), view, blank, at=at),
        "field": figures.panel_image(
            *(figures.gradient_decades(field), (-figures.DECADES, 0), field.view, image),
            at=at,
            field=None if is_whole else field,
        ),
    }
    texts = {
        "at": f"row {at[0]}, column {at[1]}",
        "position": f"{round(100 * share)}%",
        "content": f"{100 - round(100 * share)}%",
        "largest-content": f"{largest[0]:.2g}",
        "largest-position": f"{largest[1]:.2g}",
        "grid": "{} x {}".format(*call.inputs.grid),
        "input": "{} x {}".format(*field.gradient.shape),
        "area": _percent(field.area()),
        "frame": "" if is_whole else "Pixels outside of the red frame do not.",
    }
    return {"texts": texts, "maps": {name: image_url(panel) for name, panel in panels.items()}}


def image_url(image: Image.Image) -> str:
    """Return an image, reduced to SHOWN_SIDE, as a data URL."""
    shown = image.copy()
    shown.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    if max(image.size) < 128:  # the browser enlarges it without smoothing, so that losses would be seen
        return _data_url(_encode(shown), "image/png")
    return _data_url(_encode(shown, "JPEG", quality=90, subsampling=0), "image/jpeg")  # ten times as fast as PNG


def _file_urls(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: _data_url(content, _MEDIA_TYPES[name.rpartition(".")[2]]) for name, content in files.items()}


def _data_url(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _encode(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, image_format, **options)
    return content.getvalue()


def _cell(column: str, value: Any) -> str:
    digits = {"score": 2, "area": 0}.get(column, 1)
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"
