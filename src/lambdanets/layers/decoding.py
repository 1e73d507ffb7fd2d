"""Step-by-step decoding with causal layers, equal to a forward pass over the whole sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lambdanets.layers.base import LambdaBase, Projection
from lambdanets.layers.embeddings import RelativeEmbedding
from lambdanets.layers.lambda_layer import GridLambdaLayer
from lambdanets.layers.token_layer import LambdaLayer
from lambdanets.ops.checks import check_sizes, check_tensors
from lambdanets.ops.decoding import ContentState, causal_reach, content_step, embeddings_of_position
from lambdanets.ops.precision import compute_and_result_dtype, wide, without_autocast


@dataclass(frozen=True)
class DecodingState:
    """The decoding state of a causal layer. Immutable, so that several continuations can start from one state.

    position: the number of positions so far. grid: filled in row-major order; None for a sequence of any length.
    content: running sums, of fixed size. values (b, lambdas, w, v, u): of the last w positions within reach of the
    embeddings.
    """

    position: int
    grid: tuple[int, ...] | None
    content: ContentState | None
    values: Tensor


def start_decoding(
    layer: GridLambdaLayer | LambdaLayer, batch_size: int, grid: tuple[int, ...] | None = None
) -> DecodingState:
    """The state before the first position.

    layer: causal, in eval mode if it has batch norm. grid: the (height, width) or (depth, height, width) to be filled
    in row-major order; None for sequences. Memory: b k u v elements for the content, and b u v for each position that
    the embeddings reach back to. Raises ValueError naming the invalid argument.
    """
    if not isinstance(layer, GridLambdaLayer | LambdaLayer):
        raise ValueError(f"layer must be a lambda layer, got {type(layer).__name__}")
    check_sizes(batch_size=batch_size)
    if not layer.causal:
        raise ValueError("layer must be causal to be decoded step by step, got causal=False")
    if layer.dim_context != layer.dim:
        raise ValueError(f"layer must be its own context to be decoded, got dim_context = {layer.dim_context}")
    if layer.position and layer.embedding is None:
        raise ValueError("layer must have an embedding module to be decoded, got embedding=None")
    _check_eval(layer)
    dimensions = _dimensions(layer)
    if dimensions == 1 and grid is not None:
        raise ValueError(f"grid must be None for a layer on sequences, got {grid}")
    if dimensions > 1:
        if not isinstance(grid, tuple) or len(grid) != dimensions:
            raise ValueError(f"grid must be {dimensions} sides for this layer, got {grid!r}")
        check_sizes(**{f"grid[{axis}]": side for axis, side in enumerate(grid)})
    lambdas = layer.heads if layer.multi_head else 1
    weight = layer.value_projection.weight
    like = torch.empty(0, dtype=wide(weight.dtype), device=weight.device)
    content = None
    if layer.key_projection is not None:
        shape = (batch_size * lambdas, layer.query_depth, layer.intra_depth)
        content = ContentState.empty(shape, layer.value_depth, like)
    values = like.new_zeros(batch_size, lambdas, 0, layer.value_depth, layer.intra_depth)
    return DecodingState(0, grid, content, values)


@torch.no_grad()
def decode_step(layer: GridLambdaLayer | LambdaLayer, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
    """The layer's output at the next position, and the state after it.

    x (b, dim) -> (b, dim_out): equal, up to rounding, to the layer's output at that position over the whole sequence,
    with its dtype, under autocast too. Computed in float32 or wider, without gradients.
    Cost: the projections, b (u + h) k v multiply-adds for the content, and b w h (k + v) u for the w positions that the
    embeddings reach back to: half of the scope in 1-D, its rows in 2-D, all positions if they are not relative.
    Raises ValueError naming the invalid argument.
    """
    check_tensors(x=x)
    batch = state.values.shape[0]
    if tuple(x.shape) != (batch, layer.dim):
        raise ValueError(f"x must be (b, dim) = {(batch, layer.dim)}, got shape {tuple(x.shape)}")
    layer._check_dtype("x", x)
    _check_eval(layer)
    if state.grid is not None and state.position >= torch.Size(state.grid).numel():
        raise ValueError(f"state must have positions left, got a full grid of {state.grid}")
    lambdas, k, v, u = state.values.shape[1], layer.query_depth, layer.value_depth, layer.intra_depth
    queries = _project(layer, x, layer.query_projection, layer.query_norm)
    queries = layer._as_queries(queries.unsqueeze(1)).reshape(batch, lambdas, -1, k)  # (b, l, h / l, k)
    values = _project(layer, x, layer.value_projection, layer.value_norm).reshape(batch, lambdas, v, u)
    keys = None
    if layer.key_projection is not None:
        keys = _project(layer, x, layer.key_projection, nn.Identity()).reshape(batch * lambdas, k, u)
    result_dtype = compute_and_result_dtype(queries=queries, keys=keys, values=values)[1]
    with without_autocast(x.device):
        output, state = _step(layer, queries, keys, values, state)
    return output.reshape(batch, layer.dim_out).to(result_dtype), state


def _step(
    layer: GridLambdaLayer | LambdaLayer, queries: Tensor, keys: Tensor | None, values: Tensor, state: DecodingState
) -> tuple[Tensor, DecodingState]:
    """queries (b, l, h / l, k), keys (b l, k, u), values (b, l, v, u) -> (b, l, h / l, v), with l = 1 or h lambdas."""
    dtype = state.values.dtype
    queries, values = queries.to(dtype), values.to(dtype)
    output = queries.new_zeros(*queries.shape[:3], values.shape[2])
    content = state.content
    if keys is not None and content is not None:
        term, content = content_step(
            queries.flatten(0, 1), keys.to(dtype), values.flatten(0, 1), content, layer.normalize_keys
        )
        output = output + term.unflatten(0, queries.shape[:2])
    if layer.position_bias is not None:  # the bias of a multi-head layer is (h, k), its queries (b, h, 1, k)
        output = output + layer._bias_term(queries)
    window = torch.cat([state.values, values.unsqueeze(2)], dim=2)
    if layer.embedding is not None:
        window = window[:, :, -_reach(layer, state) :]
        embeddings = _embeddings(layer, state, window.shape[2]).to(dtype)  # (l, w, k, u)
        logits = torch.einsum("blhk,lwku->blhwu", queries, embeddings)
        output = output + torch.einsum("blhwu,blwvu->blhv", logits, window)
    else:
        window = window[:, :, :0]
    return output, DecodingState(state.position + 1, state.grid, content, window)


def _check_eval(layer: LambdaBase) -> None:
    norms = [norm for norm in (layer.query_norm, layer.value_norm) if not isinstance(norm, nn.Identity)]
    if any(norm.training for norm in norms):
        raise ValueError(
            "layer must be in eval mode to be decoded; batch norm in training mode depends on all positions"
        )


def _dimensions(layer: GridLambdaLayer | LambdaLayer) -> int:
    return layer.dimensions if isinstance(layer, GridLambdaLayer) else 1


def _dilation(layer: GridLambdaLayer | LambdaLayer) -> int:
    return layer.dilation if isinstance(layer, GridLambdaLayer) else 1


def _project(layer: GridLambdaLayer | LambdaLayer, x: Tensor, projection: Projection, norm: nn.Module) -> Tensor:
    """(b, d) to (b, channels), normalized."""
    projected = nn.functional.linear(x, projection.weight.flatten(1))
    return norm(projected[(..., *(None,) * _dimensions(layer))]).flatten(1)


def _current_grid(state: DecodingState) -> tuple[int, ...]:
    return (state.position + 1,) if state.grid is None else state.grid


def _reach(layer: GridLambdaLayer | LambdaLayer, state: DecodingState) -> int:
    """The number of positions within reach of the embeddings, the next one included."""
    if not isinstance(layer.embedding, RelativeEmbedding):
        return state.position + 1
    return min(causal_reach(layer.embedding.scope, _current_grid(state), _dilation(layer)), state.position + 1)


def _embeddings(layer: GridLambdaLayer | LambdaLayer, state: DecodingState, count: int) -> Tensor:
    """Embeddings (lambdas, w, k, u) of the next position and the last w positions."""
    embedding = layer.embedding
    assert embedding is not None
    if isinstance(embedding, RelativeEmbedding):
        tables = embedding.table if layer.multi_head else embedding.table.unsqueeze(0)
        tables = tables.unsqueeze(-1) if layer.intra_depth == 1 else tables
        grid, dilation = _current_grid(state), _dilation(layer)
        rows = [embeddings_of_position(table, grid, dilation, state.position, count) for table in tables]
        return torch.stack(rows)
    pairs = layer._embeddings_of(state.position + 1, state.position + 1)
    pairs = pairs if layer.multi_head else pairs.unsqueeze(0)
    pairs = pairs.unsqueeze(-1) if layer.intra_depth == 1 else pairs
    return pairs[:, state.position]
