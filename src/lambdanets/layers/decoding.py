"""Causal layers one position at a time, as when generating: the same outputs as over the whole sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lambdanets.layers.base import Projection, check_sizes
from lambdanets.layers.embeddings import RelativeEmbedding
from lambdanets.layers.lambda_layer import GridLambdaLayer
from lambdanets.layers.token_layer import LambdaLayer
from lambdanets.ops.decoding import ContentState, causal_reach, content_step, embeddings_of_position


@dataclass(frozen=True)
class DecodingState:
    """What a causal layer remembers of the positions so far; a state can be gone on from more than once.

    position: how many there were. grid: that they fill in row-major order, None for a sequence of any length.
    content: running sums, of one size. values (b, lambdas, w, v, u): of the last positions, as many as the embeddings
    reach back to.
    """

    position: int
    grid: tuple[int, ...] | None
    content: ContentState | None
    values: Tensor


def start_decoding(
    layer: GridLambdaLayer | LambdaLayer, batch_size: int, grid: tuple[int, ...] | None = None
) -> DecodingState:
    """The state before the first position.

    layer: causal, of stride 1, in eval mode if it has batch norm. grid: the (height, width) or (depth, height, width)
    to be filled in row-major order; None for sequences. Raises ValueError naming what does not fit.
    """
    check_sizes(batch_size=batch_size)
    if not layer.causal:
        raise ValueError("layer must be causal to be decoded step by step, got causal=False")
    if isinstance(layer, GridLambdaLayer) and layer.stride != 1:
        raise ValueError(f"layer must have stride 1 to be decoded step by step, got {layer.stride}")
    dimensions = _dimensions(layer)
    if dimensions == 1 and grid is not None:
        raise ValueError(f"grid must be None for a layer on sequences, got {grid}")
    if dimensions > 1:
        if not isinstance(grid, tuple) or len(grid) != dimensions:
            raise ValueError(f"grid must be {dimensions} sides for this layer, got {grid!r}")
        check_sizes(**{f"grid[{axis}]": side for axis, side in enumerate(grid)})
    lambdas = layer.heads if layer.multi_head else 1
    like = layer.value_projection.weight
    content = None
    if layer.key_projection is not None:
        shape = (batch_size * lambdas, layer.query_depth, layer.intra_depth)
        content = ContentState.empty(shape, layer.value_depth, like)
    values = like.new_zeros(batch_size, lambdas, 0, layer.value_depth, layer.intra_depth)
    return DecodingState(0, grid, content, values)


@torch.no_grad()
def decode_step(layer: GridLambdaLayer | LambdaLayer, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
    """The layer's output at the next position, and the state after it.

    x (b, dim) -> (b, dim_out): to rounding what the layer gives at that position over the whole sequence. No gradient.
    Cost: the projections, b (u + h) k v for the content, and b w k (h + v u) for the w positions that the embeddings
    reach back to: the scope's half in 1-D, its rows in 2-D, all positions with embeddings that are not relative.
    Raises ValueError naming what does not fit.
    """
    batch = state.values.shape[0]
    if tuple(x.shape) != (batch, layer.dim):
        raise ValueError(f"x must be (b, dim) = {(batch, layer.dim)}, got shape {tuple(x.shape)}")
    layer._check_dtype("x", x)
    if layer.value_norm.training and not isinstance(layer.value_norm, nn.Identity):
        raise ValueError("layer must be in eval mode to be decoded: batch norm in training mode looks at all positions")
    if state.grid is not None and state.position >= torch.Size(state.grid).numel():
        raise ValueError(f"state must have positions left: grid {state.grid} is full")
    lambdas, k, v, u = state.values.shape[1], layer.query_depth, layer.value_depth, layer.intra_depth
    queries = _project(layer, x, layer.query_projection, layer.query_norm)
    queries = layer._as_queries(queries.unsqueeze(-1)).reshape(batch, lambdas, -1, k)  # (b, l, h / l, k)
    values = _project(layer, x, layer.value_projection, layer.value_norm).reshape(batch, lambdas, v, u)
    output = queries.new_zeros(*queries.shape[:3], v)
    content = state.content
    if layer.key_projection is not None and content is not None:
        keys = _project(layer, x, layer.key_projection, nn.Identity()).reshape(batch * lambdas, k, u)
        term, content = content_step(queries.flatten(0, 1), keys, values.flatten(0, 1), content, layer.normalize_keys)
        output = output + term.unflatten(0, (batch, lambdas))
    window = torch.cat([state.values, values.unsqueeze(2)], dim=2)
    if layer.embedding is not None:
        window = window[:, :, -_reach(layer, state) :]
        embeddings = _embeddings(layer, state, window.shape[2])  # (l, w, k, u)
        output = output + torch.einsum("blhk,lwku,blwvu->blhv", queries, embeddings, window)
    else:
        window = window[:, :, :0]
    return output.reshape(batch, layer.dim_out), DecodingState(state.position + 1, state.grid, content, window)


def _dimensions(layer: GridLambdaLayer | LambdaLayer) -> int:
    return layer.dimensions if isinstance(layer, GridLambdaLayer) else 1


def _dilation(layer: GridLambdaLayer | LambdaLayer) -> int:
    return layer.dilation if isinstance(layer, GridLambdaLayer) else 1


def _project(layer: GridLambdaLayer | LambdaLayer, x: Tensor, projection: Projection, norm: nn.Module) -> Tensor:
    """(b, d) to (b, channels), normalized."""
    projected = nn.functional.linear(x, projection.weight.flatten(1))
    return norm(projected[(..., *(None,) * _dimensions(layer))]).flatten(1)


def _grid_so_far(state: DecodingState) -> tuple[int, ...]:
    return (state.position + 1,) if state.grid is None else state.grid


def _reach(layer: GridLambdaLayer | LambdaLayer, state: DecodingState) -> int:
    """How many positions, the next one among them, it can hear."""
    if not isinstance(layer.embedding, RelativeEmbedding):
        return state.position + 1
    return min(causal_reach(layer.embedding.scope, _grid_so_far(state), _dilation(layer)), state.position + 1)


def _embeddings(layer: GridLambdaLayer | LambdaLayer, state: DecodingState, count: int) -> Tensor:
    """e (lambdas, w, k, u) of the next position with the last w."""
    embedding = layer.embedding
    assert embedding is not None
    if isinstance(embedding, RelativeEmbedding):
        tables = embedding.table if layer.multi_head else embedding.table.unsqueeze(0)
        tables = tables.unsqueeze(-1) if layer.intra_depth == 1 else tables
        grid, dilation = _grid_so_far(state), _dilation(layer)
        rows = [embeddings_of_position(table, grid, dilation, state.position, count) for table in tables]
        return torch.stack(rows)
    pairs = embedding(state.position + 1, state.position + 1)
    pairs = pairs if layer.multi_head else pairs.unsqueeze(0)
    pairs = pairs.unsqueeze(-1) if layer.intra_depth == 1 else pairs
    return pairs[:, state.position]
