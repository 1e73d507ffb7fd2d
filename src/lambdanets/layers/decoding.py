"""Step-by-step decoding with causal layers; outputs equal those of a forward pass over the whole sequence."""

import dataclasses
import functools

import torch
from torch import Tensor, nn

from lambdanets.layers.base import LambdaBase
from lambdanets.ops.checks import check_sizes, check_tensors
from lambdanets.ops.decoding import ContentState, causal_window, content_step, window_embeddings
from lambdanets.ops.precision import accumulation_dtype, compute_and_result_dtype, without_autocast


@dataclasses.dataclass(frozen=True)
class DecodingState:
    """The state of a causal layer between two calls of `decode_step`.

    States are immutable, so several continuations can start from the same state. The first axis of `values` and of
    the tensors in `content` is the batch, so that beams can be repeated and finished sequences left out.

    Attributes:
        position: number of positions decoded so far; an int64 tensor in the graph of a `DecodingStep`.
        grid: sides of the grid that is filled in row-major order; None for a sequence of any length.
        content: running sums of the content term, of constant size; None if the layer has no content term.
        values: (b, lambdas, w, v, u), the values of the last w positions, 0 before the first position.
    """

    position: int | Tensor
    grid: tuple[int, ...] | None
    content: ContentState | None
    values: Tensor


def start_decoding(layer: LambdaBase, batch_size: int, grid: tuple[int, ...] | None = None) -> DecodingState:
    """Return the decoding state of a causal layer before the first position.

    Memory: b k u v elements for the content term, and b u v elements for each position in `DecodingState.values`.
    With multi_head=True, each head needs this memory.

    Args:
        layer: layer with causal=True, whose embeddings, if any, are relative, so that its state has a constant size. It
            must be in eval mode if it has batch norm.
        batch_size: number of sequences decoded in parallel.
        grid: (height, width) or (depth, height, width), filled in row-major order; None, the default, for sequences.

    Raises ValueError naming the invalid argument.
    """
    check_sizes(batch_size=batch_size)
    if not layer.causal:
        raise ValueError("layer must be causal for step-by-step decoding, got causal=False")
    if layer.position and not layer.relative_embeddings:
        raise ValueError(f"layer must have a relative embedding for decoding, got embedding={layer.embedding}")
    if layer.content_by_slice:
        raise ValueError("layer must not have content='slices' for decoding")
    _check_eval(layer)
    if (grid is None) != (layer.dimensions == 1) or (grid is not None and len(grid) != layer.dimensions):
        raise ValueError(f"grid must be None for a sequence, else a tuple of {layer.dimensions} sides, got {grid!r}")
    num_lambdas = layer.heads if layer.multi_head else 1
    weight = next(layer.parameters(), torch.empty(0))  # quantized projections have no parameters
    like = torch.empty(0, dtype=accumulation_dtype(weight.dtype), device=weight.device)
    content = None
    if layer.key_projection is not None:
        shape = (batch_size, num_lambdas, layer.query_depth, layer.intra_depth)
        maxima = like.new_full(shape, torch.finfo(like.dtype).min)
        content = ContentState(maxima, torch.zeros_like(maxima), like.new_zeros(*shape, layer.value_depth))
    windows = [causal_window(each.scope, grid, layer.dilation) for each in layer.relative_embeddings]
    num_cached = max(windows, default=1) - 1  # without the next position
    values = like.new_zeros(batch_size, num_lambdas, num_cached, layer.value_depth, layer.intra_depth)
    return DecodingState(0, grid, content, values)


@torch.no_grad()
def decode_step(layer: LambdaBase, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
    """Decode one position: return the layer's output (b, dim_out) and the next state.

    Up to rounding, the output equals the output of layer(sequence) at this position, and has the same dtype, also under
    autocast. It is computed in float32 or float64, without gradients.

    Cost in multiply-adds: the projections, b (u + h) k v for the content term, and b w h (k + v) u for the position
    term. w is the window of the embeddings: about r / 2 positions in 1-D, about r / 2 full rows of the grid in 2-D. To
    export it, see `DecodingStep`.

    Args:
        layer: the layer that `start_decoding` was called with.
        x: (b, dim), the input at the next position.
        state: the state after the previous position.

    Raises ValueError naming the invalid argument.
    """
    check_tensors(x=x)
    batch = state.values.shape[0]
    if tuple(x.shape) != (batch, layer.dim):
        raise ValueError(f"x must be (b, dim) = {(batch, layer.dim)}, got shape {tuple(x.shape)}")
    _check_eval(layer)
    is_eager = isinstance(state.position, int)  # in an exported graph, the position is a tensor
    if is_eager and state.grid is not None and state.position >= torch.Size(state.grid).numel():
        raise ValueError(f"state must have positions left to decode, got a complete grid of {state.grid}")
    num_lambdas, k, v, u = state.values.shape[1], layer.query_depth, layer.value_depth, layer.intra_depth
    inputs = x.unsqueeze(1) if layer.is_token_layer else x[(..., *(None,) * layer.dimensions)]
    queries, keys, values = layer._project(inputs, None, None)
    result_dtype = compute_and_result_dtype(queries=queries, keys=keys, values=values)[1]
    queries = queries.reshape(batch, num_lambdas, -1, k).to(state.values.dtype)  # (b, l, h / l, k)
    values = values.reshape(batch, num_lambdas, v, u).to(state.values.dtype)
    content, window = state.content, state.values
    with without_autocast(x.device):
        output = queries.new_zeros(*queries.shape[:3], v)
        if keys is not None and content is not None:
            keys = keys.reshape(batch * num_lambdas, k, u).to(queries.dtype)
            sums = ContentState(*(x.flatten(0, 1) for x in content))
            term, sums = content_step(queries.flatten(0, 1), keys, values.flatten(0, 1), sums, layer.normalize_keys)
            content = ContentState(*(x.unflatten(0, (batch, num_lambdas)) for x in sums))
            output = output + term.unflatten(0, queries.shape[:2])
        if layer.position_bias is not None:  # the bias of a multi-head layer is (h, k), its queries (b, h, 1, k)
            output = output + layer._bias_term(queries)
        if layer.relative_embeddings:
            window = torch.cat([window, values.unsqueeze(2)], dim=2)
            embeddings = _window_embeddings(layer, state).to(queries.dtype)  # (l, w, k, u)
            logits = torch.einsum("blhk,lwku->blhwu", queries, embeddings)
            output = output + torch.einsum("blhwu,blwvu->blhv", logits, window)
            window = window[:, :, 1:]
    next_state = DecodingState(state.position + 1, state.grid, content, window)
    return output.reshape(batch, layer.dim_out).to(result_dtype), next_state


def _check_eval(layer: LambdaBase) -> None:
    if any(norm.training and not isinstance(norm, nn.Identity) for norm in (layer.query_norm, layer.value_norm)):
        raise ValueError(
            "layer must be in eval mode for decoding, got training mode, in which batch norm depends on all positions; "
            "call layer.eval()"
        )


def _window_embeddings(layer: LambdaBase, state: DecodingState) -> Tensor:
    """Return the embeddings (lambdas, w + 1, k, u) between the current position and the last w positions and itself."""
    context = torch.arange(-state.values.shape[2], 1, device=state.values.device) + state.position
    options = (state.grid or (0,), layer.dilation, context)
    terms = [
        torch.stack([window_embeddings(table, *options) for table in relative.tables])
        for relative in layer.relative_embeddings
    ]
    return functools.reduce(torch.add, terms)


class DecodingStep(nn.Module):
    """`decode_step` as a module on tensors, for export: the state is a flat tuple of tensors of constant shapes.

    forward(x, position, values, ...) returns (output, position, values, ...), where the state after `values` is
    maxima, norms and sums of the content term, if the layer has one; see `state_names`.

    Args:
        layer, grid: as for `start_decoding`.

    Raises ValueError naming the invalid argument.
    """

    def __init__(self, layer: LambdaBase, grid: tuple[int, ...] | None = None) -> None:
        super().__init__()
        start_decoding(layer, 1, grid)  # checks the arguments
        self.layer, self.grid = layer, grid
        self.eval()

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the state's tensors."""
        return ("position", "values", *(() if self.layer.key_projection is None else ContentState._fields))

    def start(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the state before the first position."""
        state = start_decoding(self.layer, batch_size, self.grid)
        return torch.zeros((), dtype=torch.int64), state.values, *(state.content or ())

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        position, values, *content = state
        previous_state = DecodingState(position, self.grid, ContentState(*content) if content else None, values)
        output, next_state = decode_step(self.layer, x, previous_state)
        return output, position + 1, next_state.values, *(next_state.content or ())
