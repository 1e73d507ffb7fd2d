"""Attention maps of one head at one place of an image, position shares, and the receptive field."""

from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor

from lambdanets.bounds import Range, check
from lambdanets.errors import InputError
from lambdanets.interpretability import figures
from lambdanets.interpretability.view import View
from lambdanets.layers.base import LambdaBase
from lambdanets.web.predictions import ImagePrediction

SHOWN_SIDE = 480  # longer side in pixels of the image in which a place is chosen


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention maps of one place, drawn over the image.

    layer, head: the layer and head that are shown. at: pixel (row, column) of the image. sides: (rows, columns) of the
    layer's input map, before the pooling of a strided layer.
    window: sides of the neighborhood of the position term; None if it always covers the map.
    content, position: weights of all places, with one color scale from -limit to limit.
    largest_content, largest_position: largest absolute weights.
    share_map: share of the position term at each place. share: share at `at`.
    field: receptive field. field_sides: (height, width) of the network's input. field_is_whole: whether the field has
    all its pixels. area: fraction of the input that has 90% of the gradient.
    """

    layer: str
    head: int
    at: tuple[int, int]
    sides: tuple[int, ...]
    window: tuple[int, ...] | None
    content: Image.Image
    position: Image.Image
    largest_content: float
    largest_position: float
    share_map: Image.Image
    share: float
    field: Image.Image
    field_sides: tuple[int, ...]
    field_is_whole: bool
    area: float

    @property
    def limit(self) -> float:
        """Upper end of the color scale of both maps."""
        return max(self.largest_content, self.largest_position) or 1.0


def num_heads(prediction: ImagePrediction, layer: str) -> int:
    """Return the number of heads of a layer."""
    assert prediction.explanation is not None
    return prediction.explanation.calls[layer].layer.heads


def default_layer(prediction: ImagePrediction) -> str:
    """Return the layer with the most places, because its maps show the most; the last of several."""
    assert prediction.explanation is not None
    calls = prediction.explanation.calls
    return max(reversed(prediction.layers), key=lambda layer: np.prod(calls[layer].sides))


def attention_maps(prediction: ImagePrediction, layer: str, head: int, at: tuple[int, int]) -> AttentionMaps:
    """Return the attention maps of a place.

    Raises InputError for an unknown layer or head, and for a pixel outside of the model's input.
    """
    explanation = prediction.explanation
    if explanation is None or layer not in prediction.layers:
        raise InputError(f"layer must be one of {', '.join(prediction.layers) or 'none'}, got {layer!r}")
    check("head", head, int, Range(0, num_heads(prediction, layer) - 1))
    view, image = explanation.view, prediction.image
    assert isinstance(view, View)
    attention, call = explanation.attention_map(layer, at), explanation.calls[layer]
    grid = call.inputs.grid
    weights_by_term = figures.attention_weights(attention)
    largest = [float(np.abs(weights[head]).max()) for weights in weights_by_term]
    limit = max(largest) or 1.0
    shares = explanation.position_share(layer).cpu().numpy()
    field = explanation.receptive_field(layer, at)
    assert field.view is not None
    field_is_whole = field.box == tuple((0, side) for side in field.gradient.shape)
    content, position = (
        figures.panel_image(weights[head], (-limit, limit), view, image, colors=figures.SIGNED_COLORS, at=at)
        for weights in weights_by_term
    )
    blank = Image.new("L", image.size, 255)  # the image would look like a pattern of the shares
    return AttentionMaps(
        layer,
        head,
        at,
        grid,
        _window(call.layer, call.inputs.table, grid),
        content,
        position,
        largest[0],
        largest[1],
        figures.panel_image(shares, (0, 1), view, blank, at=at),
        float(shares[view.position(at, shares.shape)]),
        figures.panel_image(
            *(figures.gradient_decades(field), (-figures.DECADES, 0), field.view, image),
            at=at,
            field=None if field_is_whole else field,
        ),
        tuple(field.gradient.shape),
        field_is_whole,
        field.area(),
    )


def _window(layer: LambdaBase, table: Tensor | None, sides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sides of the neighborhood of the position term, or None if it covers the map from every place."""
    if table is None:
        return None
    scopes = table.shape[layer.multi_head :][: len(sides)]
    window = tuple((scope - 1) * layer.dilation + 1 for scope in scopes)
    return None if all(scope >= 2 * side - 1 for scope, side in zip(window, sides, strict=True)) else window


def shown_size(image: Image.Image) -> tuple[int, int]:
    """Return (width, height) at which the image is shown to choose a place."""
    scale = SHOWN_SIDE / max(image.size)
    return max(1, round(scale * image.width)), max(1, round(scale * image.height))


def marked(image: Image.Image, at: tuple[int, int] | None) -> Image.Image:
    """Return the image at its `shown_size` with a cross at a pixel (row, column). Pixels of small images stay sharp."""
    width, height = shown_size(image)
    small = max(image.size) < SHOWN_SIDE
    resampling = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    pixels = np.asarray(image.convert("RGB").resize((width, height), resampling)).copy()
    if at is not None:
        row, column = (
            int((x + 0.5) * s / side) for x, s, side in zip(at, (height, width), image.size[::-1], strict=True)
        )
        for thickness, color in ((4, 255), (2, 0)):  # black with a white outline, which is visible everywhere
            arm = 12 + thickness
            rows = slice(max(0, row - thickness), row + thickness + 1)
            columns = slice(max(0, column - thickness), column + thickness + 1)
            pixels[rows, max(0, column - arm) : column + arm + 1] = color
            pixels[max(0, row - arm) : row + arm + 1, columns] = color
    return Image.fromarray(pixels)


def clicked_pixel(image: Image.Image, x: float, y: float) -> tuple[int, int]:
    """Return the pixel (row, column) of the image at a point of the shown image."""
    width, height = shown_size(image)
    row, column = int(y * image.height / height), int(x * image.width / width)
    return min(max(row, 0), image.height - 1), min(max(column, 0), image.width - 1)
