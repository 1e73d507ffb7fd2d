"""Which tensors of a third-party layer make up a layer of this package, and in which order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]  # of the tensors in a layer's state dict


@dataclass(frozen=True)
class Rows:
    """Consecutive output channels of a projection.

    projection: name of the module. start, count: of the channels.
    outer: if above 1, the channels are (outer, inner) in the third-party layer and (inner, outer) in ours.
    """

    projection: str
    start: int
    count: int
    outer: int = 1

    def reorder(self, x: Tensor) -> Tensor:
        """Tensor (count, ...) in our order."""
        return x if self.outer == 1 else x.unflatten(0, (self.outer, -1)).transpose(0, 1).flatten(0, 1)

    def pick(self, x: Tensor) -> Tensor:
        """The rows of the projection's weight or bias, in our order."""
        return self.reorder(x.narrow(0, self.start, self.count))


@dataclass(frozen=True)
class Source:
    """One tensor of our layer: entries of the third-party tensor `name`, rearranged by `pick` without arithmetic."""

    name: str
    pick: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """A third-party layer as tensors and arguments of ours.

    queries, keys, values: rows of its projections. norms: names of the modules that normalize queries and values;
    a layer may lack both. table: source of the embedding table (sides.., k, u), with u = 1 too.
    query_depth, heads, intra_depth: k, h and u. position_bias: name of the tensor, "" if there is none.
    dimensions: number of axes of the grid.
    grid: sides of the only map size that the third-party layer supports; None if it supports several.
    dense: whether the table has an entry per pair of positions.
    """

    queries: Rows
    keys: Rows
    values: Rows
    norms: tuple[str, str]
    table: Source
    query_depth: int
    heads: int
    intra_depth: int = 1
    position_bias: str = ""
    dimensions: int = 2
    grid: tuple[int, ...] | None = None
    dense: bool = False

    def sources(self, shapes: Shapes) -> dict[str, Source]:
        """Source of each tensor, keyed by its name in our state dict."""
        table = (
            self.table if self.intra_depth > 1 else Source(self.table.name, lambda x: self.table.pick(x).squeeze(-1))
        )
        sources = {"embedding.table": table}
        for name, rows in self._projections():
            sources[f"{name}_projection.weight"] = Source(f"{rows.projection}.weight", rows.pick)
        if self.position_bias:
            sources["position_bias"] = Source(self.position_bias, lambda x: x)
        for ours, norm, rows in zip(("query_norm", "value_norm"), self.norms, (self.queries, self.values), strict=True):
            for name in _tensor_names(shapes, norm):
                pick = rows.reorder if shapes[f"{norm}.{name}"] == (rows.count,) else _identity
                sources[f"{ours}.{name}"] = Source(f"{norm}.{name}", pick)
        return sources

    def biases(self, shapes: Shapes) -> dict[str, Source]:
        """Sources of the projection biases, keyed by "query", "key" and "value"; our projections have no biases."""
        named = ((name, f"{rows.projection}.bias", rows.pick) for name, rows in self._projections())
        return {name: Source(bias, pick) for name, bias, pick in named if bias in shapes}

    def _projections(self) -> tuple[tuple[str, Rows], ...]:
        return ("query", self.queries), ("key", self.keys), ("value", self.values)


@dataclass(frozen=True)
class Origin:
    """Where an adopted layer comes from, to convert its weights back.

    family: name of the family. heads: h. shapes: shapes of the tensors in the third-party state dict.
    biases: the projection biases, keyed by name in its state dict; our layer has none, see `conversion.py`.
    """

    family: str
    heads: int
    shapes: dict[str, tuple[int, ...]]
    biases: dict[str, Tensor] = field(default_factory=dict)


def scatter(sources: Mapping[str, Source], tensors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Third-party tensors that `sources` would rearrange into `tensors`: the inverse of every `pick`.

    Applying `pick` to indices shows where each entry comes from.
    """
    foreign: dict[str, Tensor] = {}
    for name, source in sources.items():
        shape, values = shapes[source.name], tensors[name]
        indices = source.pick(torch.arange(torch.Size(shape).numel()).view(shape)).flatten()
        if source.name not in foreign:
            foreign[source.name] = torch.zeros(shape, dtype=values.dtype, device=values.device)
        foreign[source.name].view(-1)[indices.to(values.device)] = values.detach().flatten()
    return foreign


def shapes_of(layer: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a module's state dict."""
    return {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}


def _tensor_names(shapes: Shapes, module: str) -> list[str]:
    """Names of a module's tensors, relative to the module."""
    return [name.removeprefix(f"{module}.") for name in shapes if name.startswith(f"{module}.")]


def _identity(x: Tensor) -> Tensor:
    return x
