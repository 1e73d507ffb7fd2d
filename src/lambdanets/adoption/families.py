"""The families of third-party lambda layers. To add one, write a `Family` and add it to FAMILIES.

Letters: d input channels, h heads, k query depth, u intra-depth, v value depth, r side of the scope, n positions.
"""

import math
from typing import Any

from torch import nn

from lambdanets.adoption.family import Family, convolution_table, has_tensor, stored_table
from lambdanets.adoption.layout import Layout, Rows, Shapes, Source


class Timm(Family):
    """timm.layers.lambda_layer: one projection to queries (h k), keys k and values v; u = 1."""

    name = "timm"
    attributes = ("qkv", "norm_q", "norm_v", "conv_lambda", "pos_emb", "pool", "num_heads")

    def heads(self, layer: Any) -> int:
        return int(layer.num_heads)

    def pool(self, layer: Any) -> nn.Module | None:
        return None if isinstance(layer.pool, nn.Identity) else layer.pool

    def layout(self, shapes: Shapes, heads: int) -> Layout:
        local = "conv_lambda.weight" in shapes  # (k, 1, r, r, 1), or pos_emb (2 H - 1, 2 W - 1, k)
        depth = shapes["conv_lambda.weight"][0] if local else shapes["pos_emb"][2]
        value_channels = shapes["qkv.weight"][0] - (heads + 1) * depth
        table = Source("pos_emb", lambda x: x.unsqueeze(-1))
        if local:
            table = Source("conv_lambda.weight", lambda x: x.squeeze(4).movedim((0, 1), (-2, -1)))
        return Layout(
            queries=Rows("qkv", 0, heads * depth),
            keys=Rows("qkv", heads * depth, depth),
            values=Rows("qkv", (heads + 1) * depth, value_channels),
            norms=("norm_q", "norm_v"),
            table=table,
            query_depth=depth,
            heads=heads,
            position_bias=_bias("conv_lambda", shapes),
            grid=None if local else _grid_of_table(shapes["pos_emb"], 2),
        )


class Lucidrains(Family):
    """lambda-networks on PyPI: keys (u k), values (u v); LambdaUNet too, whose projections may be in a Sequential."""

    name = "lucidrains"
    attributes = ("to_q", "to_k", "to_v", "heads")

    def recognizes(self, layer: Any) -> bool:
        has_position = isinstance(getattr(layer, "pos_conv", None), nn.Module) or has_tensor(layer, "rel_pos_emb")
        return super().recognizes(layer) and (has_position or has_tensor(layer, "pos_emb"))

    def layout(self, shapes: Shapes, heads: int) -> Layout:
        position = next(name for name in ("pos_conv.weight", "rel_pos_emb", "pos_emb") if name in shapes)
        local, dense = position == "pos_conv.weight", position == "pos_emb"
        depth, intra_depth = shapes[position][:2] if local else shapes[position][-2:]
        dimensions = len(shapes[_weight("to_q", shapes)]) - 2
        grid = None
        if not local:
            grid = _square(shapes[position][0]) if dense else _grid_of_table(shapes[position], dimensions)
        return Layout(
            queries=_rows("to_q", shapes),
            keys=_rows("to_k", shapes, intra_depth),
            values=_rows("to_v", shapes, intra_depth),
            norms=("norm_q", "norm_v"),
            table=convolution_table(position) if local else stored_table(position),
            query_depth=depth,
            heads=heads,
            intra_depth=intra_depth,
            position_bias=_bias("pos_conv", shapes),
            dimensions=dimensions,
            grid=grid,
            dense=dense,
        )


class Holocron(Family):
    """Holocron, and lucidrains' first version: keys (k u), values (v u); the table R, or embeddings of all pairs."""

    name = "Holocron"
    attributes = ("to_q", "to_k", "to_v", "norm_q", "norm_v")

    def recognizes(self, layer: Any) -> bool:
        return super().recognizes(layer) and (has_tensor(layer, "R") or has_tensor(layer, "pos_emb"))

    def heads(self, layer: Any) -> int:
        return int(layer.num_heads if hasattr(layer, "num_heads") else layer.heads)

    def layout(self, shapes: Shapes, heads: int) -> Layout:
        local = "R" in shapes  # (k, u, 1, r, r), or pos_emb (n, n, k, u)
        depth, intra_depth = shapes["R"][:2] if local else shapes["pos_emb"][2:]
        return Layout(
            queries=_rows("to_q", shapes),
            keys=_rows("to_k", shapes),
            values=_rows("to_v", shapes),
            norms=("norm_q", "norm_v"),
            table=convolution_table("R") if local else stored_table("pos_emb"),
            query_depth=depth,
            heads=heads,
            intra_depth=intra_depth,
            grid=None if local else _square(shapes["pos_emb"][0]),
            dense=not local,
        )


class DLi14(Family):
    """d-li14's lambda.pytorch and its copies: one projection to queries (h k), keys (u k) and values (u v)."""

    name = "d-li14"
    attributes = ("conv_qkv", "norm_q", "norm_v", "lambda_conv", "Nh", "dk", "du")

    def heads(self, layer: Any) -> int:
        return int(layer.Nh)

    def pool(self, layer: Any) -> nn.Module | None:
        return getattr(layer, "avgpool", None)

    def layout(self, shapes: Shapes, heads: int) -> Layout:
        depth, intra_depth = shapes["lambda_conv.weight"][:2]
        values_start = (heads + intra_depth) * depth
        return Layout(
            queries=Rows("conv_qkv", 0, heads * depth),
            keys=Rows("conv_qkv", heads * depth, intra_depth * depth, intra_depth),
            values=Rows("conv_qkv", values_start, shapes["conv_qkv.weight"][0] - values_start, intra_depth),
            norms=("norm_q", "norm_v"),
            table=convolution_table("lambda_conv.weight"),
            query_depth=depth,
            heads=heads,
            intra_depth=intra_depth,
            position_bias=_bias("lambda_conv", shapes),
        )


class Leaderj1001(Family):
    """leaderj1001's layer and Telefonica's, in 1-D and 2-D: keys (k u), values (v u), a table (k, u, 1, r..)."""

    name = "leaderj1001"
    attributes = ("queries", "keys", "values", "embedding", "heads", "kk", "uu", "vv")

    def pool(self, layer: Any) -> nn.Module | None:
        return getattr(layer, "avgpool", None)

    def layout(self, shapes: Shapes, heads: int) -> Layout:
        depth, intra_depth = shapes["embedding"][:2]
        dimensions = len(shapes[_weight("queries", shapes)]) - 2
        table = convolution_table("embedding")
        if len(shapes["embedding"]) == 2:  # the context of a position is the position itself
            table = Source("embedding", lambda x: x[(None,) * dimensions])
        return Layout(
            queries=_rows("queries", shapes),
            keys=_rows("keys", shapes),
            values=_rows("values", shapes),
            norms=("queries.1", "values.1"),
            table=table,
            query_depth=depth,
            heads=heads,
            intra_depth=intra_depth,
            dimensions=dimensions,
        )


# A layer that several families recognize belongs to the first whose replacement gives the same outputs.
FAMILIES: tuple[Family, ...] = (Timm(), Lucidrains(), Holocron(), DLi14(), Leaderj1001())


def _weight(module: str, shapes: Shapes) -> str:
    """The name of a projection's weight; the projection may be the first module of a Sequential."""
    return f"{module}.weight" if f"{module}.weight" in shapes else f"{module}.0.weight"


def _rows(module: str, shapes: Shapes, outer: int = 1) -> Rows:
    """All rows of a separate projection."""
    weight = _weight(module, shapes)
    return Rows(weight.removesuffix(".weight"), 0, shapes[weight][0], outer)


def _bias(module: str, shapes: Shapes) -> str:
    return f"{module}.bias" if f"{module}.bias" in shapes else ""


def _grid_of_table(shape: tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """The sides of the largest map that a table (2 S_1 - 1, .., k[, u]) covers."""
    return tuple((side + 1) // 2 for side in shape[:dimensions])


def _square(positions: int) -> tuple[int, int]:
    """Two sides with the product `positions`, as equal as possible."""
    side = next(side for side in range(math.isqrt(positions), 0, -1) if positions % side == 0)
    return side, positions // side
