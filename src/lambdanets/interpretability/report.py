"""Figures and numbers of an explanation, in a folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from lambdanets.errors import InputError
from lambdanets.files import atomic_open
from lambdanets.interpretability import figures
from lambdanets.interpretability.explanation import Explanation, ReceptiveField


@dataclass(frozen=True, eq=False)
class Report:
    """Results of `write_report`.

    shares: share of the position term by layer, (H', W') each. heads: number of heads by layer.
    """

    shares: dict[str, np.ndarray]
    heads: dict[str, int]
    receptive_field: ReceptiveField


def write_report(explanation: Explanation, image: Image.Image, layer: str, at: tuple[int, int], folder: Path) -> Report:
    """Write figures, and their numbers as explanation.npz, to a folder.

    image: the explained image. layer, at: layer and pixel of the attention map, the keys and the receptive field.

    explanation.npz has "content" and "position" (h, H, W[, u]), "at" (of the layer's map), "keys" ([h,] H, W, k[, u])
    if the layer has a content term, "gradient" and "box" of the receptive field, and "share/NAME" for each layer.
    Raises InputError for networks with lambda layers on anything but 2-D maps.
    """
    if explanation.view is None or any(len(call.sides) != 2 for call in explanation.calls.values()):
        raise InputError("model must have only lambda layers on 2-D maps to draw figures")
    view = explanation.view
    attention = explanation.attention_map(layer, at)
    field = explanation.receptive_field(layer, at)
    shares = {name: explanation.position_share(name).cpu().numpy() for name in explanation.layers}
    arrays = {
        "content": attention.content.cpu().numpy(),
        "position": attention.position.cpu().numpy(),
        "at": np.array(attention.at),
        "gradient": field.gradient.cpu().numpy(),
        "box": np.array(field.box),
        **{f"share/{name}": share for name, share in shares.items()},
    }
    figures.draw_attention(attention, view, image, at, folder / "attention.png")
    figures.draw_shares(shares, view, image, folder / "shares.png")
    figures.draw_receptive_field(field, view, image, at, folder / "receptive_field.png")
    lambda_layer = explanation.calls[layer].layer
    if lambda_layer.key_projection is not None:
        keys = arrays["keys"] = explanation.keys(layer).cpu().numpy()
        maps = np.moveaxis(keys, 0, 2) if lambda_layer.multi_head else keys
        figures.draw_keys(maps.reshape(*maps.shape[:2], -1), layer, view, image, folder / "keys.png")
    with atomic_open(folder / "explanation.npz") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return Report(shares, {name: call.layer.heads for name, call in explanation.calls.items()}, field)
