"""The position term in exported graphs, of torch.export, ONNX and torch.jit.trace.

Exported graphs contain only standard operations: no custom operators, no FFTs, and no Python loops over
dynamic sizes. With fixed sides, the query order of all pairs, `row_transform` or a convolution is
used, whichever has fewer multiply-adds. Tensors that depend only on the table are computed in the
graph; runtimes fold them into constants when they load it. With dynamic sides, a convolution with
the whole table is used, which is valid for every size.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.maps import Maps
from lambdanets.ops.position.row_transform import multiply_adds, row_transform, table_block, tiles_of_graph, transforms
from lambdanets.ops.precision import accumulation_dtype, widen_float16
from lambdanets.ops.tables import crop_to_grid, mask_future, pairwise_embeddings
from lambdanets.ops.tracing import static_shape

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONVOLUTION_SLOWDOWN = 4  # compared with matrix products


def interact_in_graph(
    queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, grid: Sequence[int], causal: bool
) -> Tensor:
    """Compute the output (b, h, n, v) for checked tensors with the axis u."""
    content_term = None if content is None else queries.to(content.dtype) @ content.unsqueeze(1)
    queries, values = (x.to(widen_float16(x.dtype)) for x in (queries, values))
    table = table.to(values.dtype)
    if causal:
        table = mask_future(table, len(grid))
    if any(isinstance(side, torch.SymInt) for side in grid):
        output = _convolution(queries, table, values, grid)
    else:
        output = _fixed_sides(queries, crop_to_grid(table, grid), values, grid)
    return output if content_term is None else output + content_term.to(output.dtype)


def _fixed_sides(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int]) -> Tensor:
    _, heads, n, depth = static_shape(queries)
    *_, value_depth, intra_depth = static_shape(values)
    sides = static_shape(table)[: len(grid)]
    radii = tuple(side // 2 for side in sides)
    maps = tiles_of_graph(Maps.of(grid, radii, radii))
    applied = heads * n * depth * value_depth
    convolution = n * math.prod(sides) * depth * value_depth * intra_depth
    costs = {
        "pairs": n * n * heads * (depth + value_depth) * intra_depth,
        "rows": maps.slices.side * multiply_adds(maps, depth, value_depth, maps.slices.window * intra_depth) + applied,
        "convolution": _CONVOLUTION_SLOWDOWN * convolution + applied,
    }
    cheapest = min(costs, key=lambda name: costs[name])
    if cheapest == "pairs":
        return _query_order(queries, table, values, grid)
    if cheapest == "convolution":
        return _convolution(queries, table, values, grid)
    dtype = accumulation_dtype(values.dtype)  # 16 bits would lose too much between the transforms
    prepared = table_block(maps.table(table), maps), *transforms(maps.columns, values.to(dtype))
    rows = maps.split(queries.transpose(1, 2).to(dtype))
    output = row_transform(rows, prepared, maps.values(values.to(dtype)), maps)
    return maps.join(output).transpose(1, 2).to(table.dtype)


def _query_order(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int]) -> Tensor:
    """Multiply queries by the embeddings of all pairs first, then the logits by values."""
    n = math.prod(grid)
    embeddings = pairwise_embeddings(table, grid, 1).reshape(n, queries.shape[3], -1)  # (n, k, (u, m))
    logits = (queries.transpose(1, 2) @ embeddings).flatten(1, 2)  # (b, (n, h), (u, m))
    output = logits @ values.permute(0, 3, 1, 2).flatten(1, 2)
    return output.unflatten(1, (n, -1)).transpose(1, 2)


def _convolution(queries: Tensor, table: Tensor, values: Tensor, grid: Sequence[int]) -> Tensor:
    maps = values.permute(0, 2, 3, 1).unflatten(3, tuple(grid)).contiguous()  # (b, v, u, S_1..S_D)
    weights = table.movedim((len(grid), len(grid) + 1), (0, 1))  # (k, u, r_1..r_D)
    padding = [side // 2 for side in weights.shape[2:]]
    lambdas = _CONVOLUTIONS[len(grid)](maps.flatten(0, 1), weights, padding=padding)
    lambdas = lambdas.unflatten(0, (-1, values.shape[2])).flatten(3)  # (b, v, k, n)
    return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas)
