"""Predicted cost of the position term of a lambda layer with each algorithm, from the layer's options."""

from dataclasses import dataclass, fields

import torch

from lambdanets.bounds import Range, check
from lambdanets.errors import InputError
from lambdanets.ops import plan
from lambdanets.ops.position.plan import Plan

_SIDE = Range(1, 4096)


@dataclass(frozen=True)
class LayerShape:
    """Options of a lambda layer and the size of its map, with the names of `LambdaLayer2d`.

    scope: side of the neighborhood that the position term covers; 0 for the whole map.
    """

    batch: int = 8
    dim: int = 64
    height: int = 56
    width: int = 56
    heads: int = 4
    query_depth: int = 16
    scope: int = 23
    intra_depth: int = 1

    RANGES = {  # noqa: RUF012 - not a field
        "batch": Range(1, 4096),
        "dim": Range(1, 8192),
        "height": _SIDE,
        "width": _SIDE,
        "heads": Range(1, 256),
        "query_depth": Range(1, 256),
        "scope": Range(0, 4097),
        "intra_depth": Range(1, 64),
    }

    def __post_init__(self) -> None:
        for option in fields(self):
            check(option.name, getattr(self, option.name), int, self.RANGES[option.name])
        if self.scope and self.scope % 2 == 0:
            raise InputError(f"scope must be odd, or 0 for the whole map, got {self.scope}")
        if self.dim % self.heads:
            raise InputError(f"dim must be divisible by heads, got {self.dim} and {self.heads}")


def plan_layer(shape: LayerShape) -> Plan:
    """Return the predicted costs of all algorithms on this machine's CPU, in float32, and the chosen ones.

    Allocates no tensors. Raises InputError for a shape that no algorithm supports.
    """
    n, k, u = shape.height * shape.width, shape.query_depth, shape.intra_depth
    sides = [shape.scope] * 2 if shape.scope else [2 * shape.height - 1, 2 * shape.width - 1]
    intra = [u] if u > 1 else []
    queries = _empty(shape.batch, shape.heads, n, k)
    values = _empty(shape.batch, n, shape.dim // shape.heads, *intra)
    return plan(queries, _empty(*sides, k, *intra), values, (shape.height, shape.width))


def _empty(*sides: int) -> torch.Tensor:
    return torch.empty(sides, device="meta")
