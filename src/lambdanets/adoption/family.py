"""The base class of families: third-party lambda layers with the same parameter names and the same formula."""

from typing import Any

from torch import Tensor, nn

from lambdanets.adoption.layout import Layout, Shapes, Source


class Family:
    """Third-party lambda layers with the same parameter names and the same formula.

    They are recognized by their attributes, not by their class: their source files are often copied into projects.
    """

    name: str
    attributes: tuple[str, ...]  # a layer of the family has all of them

    def recognizes(self, layer: Any) -> bool:
        return all(hasattr(layer, name) for name in self.attributes)

    def heads(self, layer: Any) -> int:
        return int(layer.heads)

    def pool(self, layer: Any) -> nn.Module | None:
        """The pooling after the layer."""
        return None

    def layout(self, shapes: Shapes, heads: int) -> Layout:
        """The layout of a layer, from the shapes of its tensors."""
        raise NotImplementedError


def convolution_table(name: str) -> Source:
    """The table (sides.., k, u) in a convolution's weight (k, u, 1, sides..)."""
    return Source(name, lambda x: x.squeeze(2).movedim((0, 1), (-2, -1)))


def stored_table(name: str) -> Source:
    """A table that is stored as (.., k, u)."""
    return Source(name, lambda x: x)


def has_tensor(layer: Any, name: str) -> bool:
    return isinstance(getattr(layer, name, None), Tensor)
