"""Attention baselines: softmax attention over the scope of a lambda layer, with relative position biases."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class AttentionLayer(nn.Module):
    """Multi-head attention on feature maps (b, dim, H, W), with 1x1 input projections and no output projection.

    y[n,h] = sum_m softmax_m(q[n,h] . k[m,h] / sqrt(c) + B[h, m - n]) v[m,h], where m is in the scope around n,
    and B is a learned table (h, r_1, r_2). Subclasses implement `attend`.
    """

    def __init__(self, dim: int, heads: int, scope: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.heads, self.grid = heads, grid
        sides = [min(scope, 2 * side - 1) for side in grid]
        self.projection = nn.Conv2d(dim, 3 * dim, 1, bias=False)
        nn.init.normal_(self.projection.weight, std=dim**-0.5)
        self.table = nn.Parameter(torch.randn(heads, *sides))

    def forward(self, x: Tensor) -> Tensor:
        projected = self.projection(x).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(3, 4)
        queries, keys, values = projected.unbind(1)  # (b, h, n, c)
        output = self.attend(queries, keys, values)
        return output.transpose(2, 3).flatten(1, 2).unflatten(2, self.grid)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of each head; all tensors are (b, h, n, c)."""
        raise NotImplementedError


class ReferenceAttention(AttentionLayer):
    """The equation without optimizations, one example at a time, with checkpoints in place of attention maps."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        bias = relative_bias(self.table, self.grid)

        def attend_example(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(dim=-1) @ v

        examples = zip(queries, keys, values, strict=True)
        return torch.stack([checkpoint(attend_example, *example, use_reentrant=False) for example in examples])


class _Sdpa(AttentionLayer):
    """PyTorch's scaled_dot_product_attention with the bias as an (n, n) matrix.

    The first call caches the indices into the table and, in inference, the matrix.
    """

    _bias: "RelativeBias | None" = None
    _cached_bias: Tensor | None = None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self._bias is None:
            self._bias = RelativeBias(self.table, self.grid)
        if self.training:
            bias = self._bias(self.table)
        else:
            if self._cached_bias is None:
                self._cached_bias = self._bias(self.table)
            bias = self._cached_bias
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)


class _Flex(AttentionLayer):
    """Compiled FlexAttention with the scope as its block mask."""

    _mask: Any = None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import create_block_mask

        width, table = self.grid[1], self.table
        row_radius, column_radius = table.shape[1] // 2, table.shape[2] // 2

        def in_scope(b: Tensor, h: Tensor, n: Tensor, m: Tensor) -> Tensor:
            return ((m // width - n // width).abs() <= row_radius) & ((m % width - n % width).abs() <= column_radius)

        def with_bias(score: Tensor, b: Tensor, h: Tensor, n: Tensor, m: Tensor) -> Tensor:
            row = (m // width - n // width + row_radius).clamp(0, 2 * row_radius)
            column = (m % width - n % width + column_radius).clamp(0, 2 * column_radius)
            return score + table[h, row, column]

        if self._mask is None:
            n = queries.shape[2]
            self._mask = create_block_mask(in_scope, None, None, n, n, device=queries.device.type)
        return _compiled_flex()(queries, keys, values, score_mod=with_bias, block_mask=self._mask)


ATTENTION: dict[str, type[AttentionLayer]] = {"sdpa": _Sdpa, "flex-attention": _Flex}


class RelativeBias:
    """Biases (h, n, m) from tables (h, r_1..r_D): B[h, m - n], -inf outside the table and, if causal, for m > n.

    The indices (n m,), int64, and the mask (n, m) are computed once, as attention layers usually register them as
    buffers. They take 9 bytes per pair of positions.
    """

    def __init__(self, table: Tensor, grid: tuple[int, ...], *, causal: bool = False) -> None:
        self._index, self._outside = _pair_indices(table, grid, causal=causal)

    def __call__(self, table: Tensor) -> Tensor:
        return table.flatten(1)[:, self._index].unflatten(1, self._outside.shape).masked_fill(self._outside, -torch.inf)


def relative_bias(table: Tensor, grid: tuple[int, ...], *, causal: bool = False) -> Tensor:
    """`RelativeBias` for a single call."""
    return RelativeBias(table, grid, causal=causal)(table)


def _pair_indices(table: Tensor, grid: tuple[int, ...], *, causal: bool) -> tuple[Tensor, Tensor]:
    positions = torch.cartesian_prod(*(torch.arange(side, device=table.device) for side in grid)).view(-1, len(grid))
    index, outside = torch.zeros((), dtype=torch.long, device=table.device), None
    for axis, side in enumerate(table.shape[1:]):  # axis by axis, to allocate (n, n) instead of (n, n, D) numbers
        offset = positions[None, :, axis] - positions[:, None, axis] + side // 2
        outside_axis = (offset < 0) | (offset >= side)
        outside = outside_axis if outside is None else outside | outside_axis
        index = index * side + offset.clamp(0, side - 1)
    if causal:
        future = torch.ones(index.shape, dtype=torch.bool, device=table.device).triu(1)
        outside = future if outside is None else outside | future
    assert outside is not None
    return index.flatten(), outside


def estimate_bytes(batch: int, heads: int, positions: int, itemsize: int, *, training: bool) -> int:
    """Estimate the memory of attention with a bias matrix: biases, indices and, in training, scores."""
    pairs = positions**2
    biases = pairs * (heads * itemsize + 8) * (3 if training else 1)
    return biases + (4 * batch * heads * pairs * itemsize if training else 0)


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
