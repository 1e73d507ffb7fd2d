"""Attention maps of lambda layers, which are exact because the output is linear in the values.

    y[h, n] = sum_m (a_c[h, n, m] + a_p[h, n, m]) v[m] + q[h, n] . bias
    a_c[h, n, m] = q[h, n] . kbar[n, m]        a_p[h, n, m] = q[h, n] . e[n, m]

follow from Eqs. 1 and 2 of the paper by multiplying queries with keys and embeddings first. A forward pass never does
this: it would cost n m products per head. One row n costs m (k + v) h. With intra-depth u, weights and values have an
extra axis of size u, and the sum is over m and u. A strided layer average-pools its outputs, so its weights are the
average of the weights of the pooled positions.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lambdanets.layers.base import LambdaBase, LambdaInputs
from lambdanets.ops.content import normalize_over_context
from lambdanets.ops.decoding import query_embeddings
from lambdanets.ops.precision import accumulation_dtype


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap:
    """The weights of all context positions in one output position of a lambda layer, in float32 or wider.

    layer: name of the layer. at: output position of the layer.
    content, position: weights a_c and a_p, (h, S_1..S_D[, u]), or (h, m[, u]) for tokens; 0 if the layer lacks the
        term. They may be negative, and do not sum to 1.
    bias: (h,), the constant that a layer with position_bias adds to all channels of a head, else 0.
    values: ([h,] S_1..S_D, v[, u]).
    """

    layer: str
    at: tuple[int, ...]
    content: Tensor
    position: Tensor
    bias: Tensor
    values: Tensor

    @property
    def total(self) -> Tensor:
        """content + position."""
        return self.content + self.position

    def output(self) -> Tensor:
        """Return the layer's output at this position, (h v,): the weighted sum of the values, plus the bias."""
        sides = len(self.at)
        weights, values = self.total.flatten(1, sides), self.values
        values = (
            values.flatten(1, sides) if values.ndim > self.content.ndim else values.flatten(0, sides - 1).unsqueeze(0)
        )
        intra = "u" if weights.ndim == 3 else ""
        values = values.expand(len(weights), *values.shape[1:])
        return (torch.einsum(f"hm{intra},hmv{intra}->hv", weights, values) + self.bias.unsqueeze(1)).flatten()

    def __repr__(self) -> str:
        return f"AttentionMap({self.layer}, at={self.at}, {len(self.content)} heads)"


@torch.no_grad()
def compute_attention_map(layer: LambdaBase, inputs: LambdaInputs, at: tuple[int, ...], name: str) -> AttentionMap:
    """Return the weights of one output position of the first example.

    inputs: from `layer.prepare`. at: output position, after the pooling of a strided layer. name: of the layer.
    Cost: for each row that is pooled, m (k + v) h u multiply-adds, and with a mask of pairs or causal also the
    normalization of m keys; memory for m k u elements per row.
    """
    inputs = _first_example(layer, inputs)
    rows, row_weights = _pooled_rows(layer, inputs, at)
    queries = inputs.queries[0][:, rows]  # (h, p, k)
    heads, has_intra_depth = layer.heads, layer.intra_depth > 1
    values = inputs.values[0] if has_intra_depth else inputs.values[0].unsqueeze(-1)
    context = values.shape[-3]
    sides = inputs.grid if math.prod(inputs.grid) == context else (context,)
    allowed = _allowed(layer, inputs, rows, context)
    content = position = queries.new_zeros(heads, context, values.shape[-1])
    if inputs.keys is not None:
        same_lambda = allowed
        if layer.content_by_slice:
            slice_size = math.prod(inputs.grid[1:])
            positions = torch.arange(context, device=rows.device)
            same_lambda = positions // slice_size == rows[:, None] // slice_size
            same_lambda = same_lambda if allowed is None else same_lambda & allowed
        weights = _content_weights(layer, queries, inputs.keys[0], same_lambda)
        content = torch.einsum("p,hpmu->hmu", row_weights, weights)
    if inputs.embeddings is not None or inputs.tables:
        embeddings = _embeddings(layer, inputs, rows)  # (l, p, m, k, u)
        if allowed is not None:
            embeddings = embeddings * allowed[..., None, None]
        weights = torch.einsum("hpk,hpmku->hpmu", queries, embeddings.expand(heads, -1, -1, -1, -1))
        position = torch.einsum("p,hpmu->hmu", row_weights, weights)
    bias = queries.new_zeros(heads)
    if layer.position_bias is not None:
        vectors = layer.position_bias.to(queries.dtype).expand(heads, -1)
        bias = torch.einsum("p,hpk,hk->h", row_weights, queries, vectors)
    if allowed is not None:  # excluded values may be NaN
        values = values.masked_fill(~allowed.any(0)[:, None, None], 0)
    values = values.unflatten(-3, sides)
    if not has_intra_depth:
        content, position, values = content.squeeze(-1), position.squeeze(-1), values.squeeze(-1)
    return AttentionMap(name, at, content.unflatten(1, sides), position.unflatten(1, sides), bias, values)


def shared_keys(layer: LambdaBase, inputs: LambdaInputs) -> Tensor:
    """Return the normalized keys of the first example, ([h,] S_1..S_D, k[, u]), without excluded padding.

    With a causal layer or a mask of pairs, the layer normalizes keys over the context of each query; here they are
    normalized over the whole context.
    """
    inputs = _first_example(layer, inputs)
    assert inputs.keys is not None
    keys = inputs.keys[0] if layer.intra_depth > 1 else inputs.keys[0].unsqueeze(-1)
    allowed = None
    if inputs.mask is not None and inputs.mask.shape[-2] == 1:
        allowed = inputs.mask.reshape(-1, 1, 1)
    context = keys.shape[-3]
    slices = (inputs.grid[0], -1) if layer.content_by_slice else (1, -1)
    keys = keys.unflatten(-3, slices)
    allowed = None if allowed is None else allowed.unflatten(0, slices)
    keys = normalize_over_context(keys, allowed, layer.normalize_keys).flatten(-4, -3)
    keys = keys.unflatten(-3, inputs.grid if math.prod(inputs.grid) == context else (context,))
    return keys if layer.intra_depth > 1 else keys.squeeze(-1)


def _first_example(layer: LambdaBase, inputs: LambdaInputs) -> LambdaInputs:
    """Return the inputs for a batch of only the first example, in float32 or wider."""
    dtype = accumulation_dtype(inputs.queries.dtype)
    mask, embeddings = inputs.mask, inputs.embeddings
    if embeddings is not None:
        axes = 3 + (layer.intra_depth > 1) + layer.multi_head
        embeddings = (embeddings[0] if embeddings.ndim > axes else embeddings).to(dtype)
    return inputs._replace(
        queries=inputs.queries[:1].to(dtype),
        keys=None if inputs.keys is None else inputs.keys[:1].to(dtype),
        values=inputs.values[:1].to(dtype),
        mask=mask if mask is None or mask.ndim == 2 else mask[:1],
        embeddings=embeddings,
        tables=tuple(table.to(dtype) for table in inputs.tables),
    )


def _pooled_rows(layer: LambdaBase, inputs: LambdaInputs, at: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the positions p whose rows are averaged in one output position, and their weights.

    The output is linear in the rows, so the weights are a gradient of `finish`.
    """
    if not layer.pools:
        position = 0
        for coordinate, side in zip(at, inputs.grid, strict=True):
            position = position * side + coordinate
        return torch.tensor([position], device=inputs.queries.device), inputs.queries.new_ones(1)
    rows = inputs.queries.new_zeros(1, 1, inputs.queries.shape[2], 1)
    with torch.enable_grad():
        output = layer.finish(rows.requires_grad_(), inputs)
        output = output if layer.is_token_layer else output.movedim(1, -1)
        (weights,) = torch.autograd.grad(output[(0, *at, 0)], rows)
    positions = weights[0, 0, :, 0].nonzero()[:, 0]
    if not len(positions):  # at padding
        positions = positions.new_zeros(1)
    return positions, weights[0, 0, positions, 0]


def _allowed(layer: LambdaBase, inputs: LambdaInputs, rows: Tensor, context: int) -> Tensor | None:
    """Return bool (p, m), True where a query interacts with a context position; None for all pairs."""
    allowed = None
    if inputs.mask is not None:
        mask = inputs.mask if inputs.mask.ndim == 2 else inputs.mask[0]
        allowed = mask.expand(len(rows), -1) if len(mask) == 1 else mask[rows]
    if layer.causal:
        past = torch.arange(context, device=rows.device) <= rows[:, None]
        allowed = past if allowed is None else past & allowed
    return allowed


def _content_weights(layer: LambdaBase, queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
    """Return a_c (h, p, m, u) from queries (h, p, k) and keys ([h,] m, k[, u])."""
    keys = keys if layer.multi_head else keys.unsqueeze(0)
    keys = keys if layer.intra_depth > 1 else keys.unsqueeze(-1)
    if allowed is None:
        keys = normalize_over_context(keys, None, layer.normalize_keys).expand(layer.heads, -1, -1, -1)
        return torch.einsum("hpk,hmku->hpmu", queries, keys)
    keys = normalize_over_context(keys.unsqueeze(1), allowed[..., None, None], layer.normalize_keys)
    return torch.einsum("hpk,hpmku->hpmu", queries, keys.expand(layer.heads, -1, -1, -1, -1))


def _embeddings(layer: LambdaBase, inputs: LambdaInputs, rows: Tensor) -> Tensor:
    """Return the embeddings e[n, m] of the queries at `rows`, (h or 1, p, m, k, u)."""
    if inputs.embeddings is not None:
        pairs = inputs.embeddings if layer.multi_head else inputs.embeddings.unsqueeze(0)
        pairs = pairs if layer.intra_depth > 1 else pairs.unsqueeze(-1)
        return pairs[:, rows]
    context = torch.arange(math.prod(inputs.grid), device=rows.device)
    total: Tensor | None = None
    for table in inputs.tables:
        heads = table if layer.multi_head else table.unsqueeze(0)
        heads = heads if layer.intra_depth > 1 else heads.unsqueeze(-1)
        embeddings = torch.stack(
            [
                torch.stack([query_embeddings(head, inputs.grid, layer.dilation, int(row), context) for row in rows])
                for head in heads
            ]
        )
        total = embeddings if total is None else total + embeddings
    assert total is not None
    return total
