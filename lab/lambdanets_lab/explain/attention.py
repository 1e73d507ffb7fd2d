"""Attention maps of lambda layers, which are exact because the output is linear in the values.

    y[h, n] = sum_m (a_c[h, n, m] + a_p[h, n, m]) v[m] + q[h, n] . bias
    a_c[h, n, m] = q[h, n] . kbar[n, m]        a_p[h, n, m] = q[h, n] . e[n, m]

follow from Eqs. 1 and 2 of the paper by multiplying queries with keys and embeddings first. A forward pass never does
this: it would cost n m products per head. One row n is the gradient of the output at n with respect to the values, for
every kind of layer and mask. With intra-depth u, weights and values have an extra axis of size u, and the sum is over
m and u. A strided layer average-pools its outputs, so its weights are the average of those of the pooled positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lambdanets.layers.base import LambdaBase, LambdaInputs
from lambdanets.ops.content import normalize_over_context
from lambdanets.ops.precision import accumulation_dtype


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap:
    """The weights of all context positions in one output position of a lambda layer, in float32 or wider.

    layer: name of the layer. at: output position of the layer; of the first slice, if slices are examples of a batch
        (LambdaUNet).
    content, position: weights a_c and a_p, (h, S_1..S_D[, u]), or (h, m[, u]) for tokens; 0 if the layer lacks the
        term. They may be negative, and do not sum to 1.
    bias: (h,), the constant that a layer with position_bias adds to all channels of a head, else 0.
    values: ([h,] S_1..S_D, v[, u]).
    has_intra_depth: whether there is the axis u.
    """

    layer: str
    at: tuple[int, ...]
    content: Tensor
    position: Tensor
    bias: Tensor
    values: Tensor
    has_intra_depth: bool = False

    @property
    def total(self) -> Tensor:
        """content + position."""
        return self.content + self.position

    def output(self) -> Tensor:
        """Return the layer's output at this position, (h v,): the weighted sum of the values, plus the bias."""
        sides, intra = self.content.ndim - 1 - self.has_intra_depth, "u" if self.has_intra_depth else ""
        weights, values = self.total.flatten(1, sides), self.values
        has_heads = values.ndim > self.content.ndim
        values = values.flatten(1, sides) if has_heads else values.flatten(0, sides - 1).unsqueeze(0)
        values = values.expand(len(weights), *values.shape[1:])
        return (torch.einsum(f"hm{intra},hmv{intra}->hv", weights, values) + self.bias.unsqueeze(1)).flatten()

    def __repr__(self) -> str:
        return f"AttentionMap({self.layer}, at={self.at}, {len(self.content)} heads)"


def compute_attention_map(layer: LambdaBase, inputs: LambdaInputs, at: tuple[int, ...], name: str) -> AttentionMap:
    """Return the weights of one output position of the first example.

    inputs: from `layer.prepare`. at: output position, after the pooling of a strided layer. name: of the layer.
    Cost: for each term, that of the layer's interaction, and h times that of its gradient.
    """
    inputs = _first_example(layer, inputs)

    def row(output: Tensor) -> Tensor:
        """Return the output (h, v) at the position, from (1, h, n, v)."""
        output = layer.finish(output, inputs)
        return (output if layer.is_token_layer else output.movedim(1, -1))[(0, *at)].unflatten(0, (layer.heads, -1))

    def weights(term: Callable[[LambdaInputs], Tensor]) -> Tensor:
        """Return the weights of a term (h, m[, u]): the gradients of a channel of each head."""
        values = inputs.values.detach().requires_grad_()
        with torch.enable_grad():
            channels = row(term(inputs._replace(values=values)))[:, 0]
        axis = 3 if layer.multi_head else 2
        gradients = [torch.autograd.grad(x, values, retain_graph=True)[0].select(axis, 0)[0] for x in channels]
        return torch.stack([grad[i] if layer.multi_head else grad for i, grad in enumerate(gradients)])

    terms: dict[str, Tensor] = {}
    if inputs.keys is not None:
        terms["content"] = weights(lambda x: layer.pair_terms(x._replace(embeddings=None)))
    if inputs.embeddings is not None or inputs.tables:
        terms["position"] = weights(lambda x: layer.sum_terms(x._replace(keys=None)))
    zeros = torch.zeros_like(next(iter(terms.values())))
    content, position = terms.get("content", zeros), terms.get("position", zeros)
    with torch.no_grad():
        bias = row(layer.sum_terms(inputs._replace(values=torch.zeros_like(inputs.values))))[:, 0]
    values, is_used = inputs.values[0], (content != 0) | (position != 0)
    is_used = is_used if layer.multi_head else is_used.any(0)
    values = values.masked_fill(~is_used.unsqueeze(-2 if layer.intra_depth > 1 else -1), 0)  # excluded ones may be NaN
    sides = _context_sides(inputs, content.shape[1])
    values = values.unflatten(1 if layer.multi_head else 0, sides)
    content, position = content.unflatten(1, sides), position.unflatten(1, sides)
    return AttentionMap(name, at, content, position, bias, values, layer.intra_depth > 1)


def shared_keys(layer: LambdaBase, inputs: LambdaInputs) -> Tensor:
    """Return the normalized keys of the first example, ([h,] S_1..S_D, k[, u]), without excluded padding.

    With a causal layer or a mask of pairs, the layer normalizes keys over the context of each query; here they are
    normalized over the whole context.
    """
    inputs = _first_example(layer, inputs)
    assert inputs.keys is not None
    keys, allowed = inputs.keys[0] if layer.intra_depth > 1 else inputs.keys[0].unsqueeze(-1), None
    slices = (inputs.grid[0] if layer.content_by_slice else 1, -1)
    if inputs.mask is not None and inputs.mask.shape[-2] == 1:
        allowed = inputs.mask.reshape(-1, 1, 1).unflatten(0, slices)
    keys = normalize_over_context(keys.unflatten(-3, slices), allowed, layer.normalize_keys).flatten(-4, -3)
    keys = keys.unflatten(-3, _context_sides(inputs, keys.shape[-3]))
    return keys if layer.intra_depth > 1 else keys.squeeze(-1)


def _context_sides(inputs: LambdaInputs, context: int) -> tuple[int, ...]:
    """The sides of the context: those of the grid, unless a layer on tokens has another context."""
    return inputs.grid if math.prod(inputs.grid) == context else (context,)


def _first_example(layer: LambdaBase, inputs: LambdaInputs) -> LambdaInputs:
    """Return the inputs for a batch of only the first example, in float32 or wider."""
    mask, embeddings = inputs.mask, inputs.embeddings
    if embeddings is not None and embeddings.ndim > 3 + (layer.intra_depth > 1) + layer.multi_head:
        embeddings = embeddings[0]
    first = inputs._replace(
        queries=inputs.queries[:1],
        keys=None if inputs.keys is None else inputs.keys[:1],
        values=inputs.values[:1],
        mask=mask if mask is None or mask.ndim == 2 else mask[:1],
        embeddings=embeddings,
    )
    return first.to(accumulation_dtype(inputs.queries.dtype))
