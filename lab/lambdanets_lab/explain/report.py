"""Figures of an explanation, in a folder."""

from pathlib import Path

import numpy as np
from PIL import Image

from lambdanets.errors import InputError
from lambdanets.terminal import text_table
from lambdanets_lab.explain import figures
from lambdanets_lab.explain.explanation import Explanation


def write_report(
    explanation: Explanation, image: Image.Image, layer: str, at: tuple[int, int], folder: Path
) -> list[str]:
    """Write figures over the image; return lines about all layers and the receptive field of a pixel (row, column).

    Raises InputError for an invalid layer or pixel, and for networks with lambda layers on anything but 2-D maps.
    """
    view = explanation.view
    if view is None or any(len(call.sides) != 2 for call in explanation.calls.values()):
        raise InputError("model must have only lambda layers on 2-D maps to draw figures")
    attention, field = explanation.attention_map(layer, at), explanation.receptive_field(layer, at)
    shares = {name: explanation.position_share(name).cpu().numpy() for name in explanation.layers}
    figures.draw_attention(attention, view, image, at, folder / "attention.png")
    panels = {f"{name}\nmean {share.mean():.2f}": share for name, share in shares.items()}
    figures.draw_panels(panels, "share of the position term in the output", view, image, folder / "shares.png")
    figures.draw_receptive_field(field, image, at, folder / "receptive_field.png")
    lambda_layer = explanation.calls[layer].layer
    if lambda_layer.key_projection is not None:
        keys = explanation.keys(layer).cpu().numpy()
        keys = np.moveaxis(keys, 0, 2) if lambda_layer.multi_head else keys
        keys = np.moveaxis(keys.reshape(*keys.shape[:2], -1), 2, 0)
        panels = {f"key {number}": key / (np.abs(key).max() or 1.0) for number, key in enumerate(keys)}
        label = "weight in the content lambda / its maximum"
        figures.draw_panels(panels, label, view, image, folder / "keys.png", layer)
    rows = [("layer", "map", "heads", "position share")]
    for name, share in shares.items():
        size = "{} x {}".format(*share.shape)
        rows.append((name, size, str(explanation.calls[name].layer.heads), f"{share.mean():.2f}"))
    lines = text_table(rows).splitlines()
    return [*lines, f"{layer}, pixel {at[0]}, {at[1]}: {field.area():.1%} of the input has 90% of the gradient"]
