"""Figures and numbers of an explanation, in a folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from lambdanets.errors import InputError
from lambdanets.files import atomic_open
from lambdanets_lab.explain import figures
from lambdanets_lab.explain.attention import AttentionMap
from lambdanets_lab.explain.explanation import Explanation, ReceptiveField
from lambdanets_lab.explain.view import View


@dataclass(frozen=True, eq=False)
class Report:
    """Attention map, keys and receptive field of one layer and pixel, and the position shares of all layers.

    at: the pixel (row, column). keys: ([h,] H, W, k[, u]), with h if multi_head; None without a content term.
    shares: share of the position term by layer, (H', W') each. heads: number of heads by layer.
    """

    layer: str
    at: tuple[int, int]
    view: View
    attention: AttentionMap
    receptive_field: ReceptiveField
    keys: np.ndarray | None
    multi_head: bool
    shares: dict[str, np.ndarray]
    heads: dict[str, int]

    def write(self, image: Image.Image, folder: Path) -> None:
        """Write figures over the explained image, and their numbers as explanation.npz, to a folder.

        explanation.npz has "content" and "position" (h, H, W[, u]), "at" (of the layer's map), "keys" if the layer has
        a content term, "gradient" and "box" of the receptive field, and "share/NAME" for each layer.
        """
        arrays = {
            "content": self.attention.content.cpu().numpy(),
            "position": self.attention.position.cpu().numpy(),
            "at": np.array(self.attention.at),
            "gradient": self.receptive_field.gradient.cpu().numpy(),
            "box": np.array(self.receptive_field.box),
            **{f"share/{name}": share for name, share in self.shares.items()},
        }
        figures.draw_attention(self.attention, self.view, image, self.at, folder / "attention.png")
        figures.draw_shares(self.shares, self.view, image, folder / "shares.png")
        figures.draw_receptive_field(self.receptive_field, image, self.at, folder / "receptive_field.png")
        if self.keys is not None:
            arrays["keys"] = self.keys
            maps = np.moveaxis(self.keys, 0, 2) if self.multi_head else self.keys
            maps = maps.reshape(*maps.shape[:2], -1)
            figures.draw_keys(maps, self.layer, self.view, image, folder / "keys.png")
        with atomic_open(folder / "explanation.npz") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)


def make_report(explanation: Explanation, layer: str, at: tuple[int, int]) -> Report:
    """Compute the report of a layer and a pixel.

    Raises InputError for an invalid layer or pixel, and for networks with lambda layers on anything but 2-D maps.
    """
    if explanation.view is None or any(len(call.sides) != 2 for call in explanation.calls.values()):
        raise InputError("model must have only lambda layers on 2-D maps to draw figures")
    attention = explanation.attention_map(layer, at)
    lambda_layer = explanation.calls[layer].layer
    has_keys = lambda_layer.key_projection is not None
    return Report(
        layer,
        at,
        explanation.view,
        attention,
        explanation.receptive_field(layer, at),
        explanation.keys(layer).cpu().numpy() if has_keys else None,
        lambda_layer.multi_head,
        {name: explanation.position_share(name).cpu().numpy() for name in explanation.layers},
        {name: call.layer.heads for name, call in explanation.calls.items()},
    )
