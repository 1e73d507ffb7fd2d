"""The lambda layer on sequences, images and volumes, channels first like torch.nn.Conv1d, Conv2d and Conv3d."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from lambdanets.layers.base import LambdaBase
from lambdanets.layers.contiguous_gradient import contiguous_gradient
from lambdanets.layers.embeddings import RelativeEmbedding
from lambdanets.layers.maps import average_pool, check_pool, counts_padding, memory_format
from lambdanets.ops.checks import check_flags, check_sizes, check_tensors
from lambdanets.ops.geometry import shape_of
from lambdanets.ops.position.plan import check_algorithm

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class GridLambdaLayer(LambdaBase):
    """Base of LambdaLayer1d, 2d and 3d, which differ only in `dimensions`. LambdaLayer2d documents the arguments."""

    dimensions: int
    origin: object = None  # of weights from another package, see `lambdanets.adoption`

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        query_depth: int = 16,
        heads: int = 4,
        intra_depth: int = 1,
        scope: int | tuple[int, ...] | None = 23,
        stride: int = 1,
        dilation: int = 1,
        content: bool = True,
        position: bool = True,
        normalize_keys: str | None = "softmax",
        normalize_queries: str | None = None,
        batch_norm: bool = True,
        embedding: nn.Module | None = None,
        grid: tuple[int, ...] | None = None,
        multi_head: bool = False,
        causal: bool = False,
        position_bias: bool = False,
        pool: nn.Module | None = None,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        convolution, norm = _CONVOLUTIONS[self.dimensions - 1], _NORMS[self.dimensions - 1]
        super().__init__(
            dim,
            dim_out,
            None,
            query_depth=query_depth,
            heads=heads,
            intra_depth=intra_depth,
            content=content,
            position=position,
            normalize_keys=normalize_keys,
            normalize_queries=normalize_queries,
            batch_norm=batch_norm,
            multi_head=multi_head,
            causal=causal,
            projection=lambda ins, outs: convolution(ins, outs, 1, bias=False, **factory),
            norm=lambda channels: norm(channels, **factory),
        )
        check_sizes(stride=stride, dilation=dilation)
        check_algorithm(algorithm)
        if causal and stride != 1:
            raise ValueError(f"stride must be 1 when causal is True, because pooling looks ahead; got {stride}")
        check_flags(position_bias=position_bias)
        if position_bias and not position:
            raise ValueError("position_bias must be False when position is False, got True")
        if pool is not None:
            check_pool(pool, stride, self.dimensions)
        self.stride, self.dilation, self.algorithm = stride, dilation, algorithm
        self.pool = pool
        if position_bias:
            shape = (heads, query_depth) if multi_head else (query_depth,)
            self.position_bias = nn.Parameter(torch.empty(shape, **factory))
        if embedding is not None:
            self._check_embedding(embedding, self.dimensions)
            if grid is not None:
                raise ValueError(f"grid must be None if embedding is given, got {grid}")
            if dilation != 1 and not isinstance(embedding, RelativeEmbedding):
                raise ValueError(f"dilation must be 1 unless embedding is relative, got {dilation}")
        elif position:
            sides = _table_sides(self.dimensions, scope, grid)
            self._owns_embedding = True
            embedding = RelativeEmbedding(
                sides, query_depth, intra_depth, heads=heads if multi_head else None, **factory
            )
        self.embedding = embedding
        self.reset_parameters()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b, dim, S_1..S_D) -> (b, dim_out, ceil(S_1 / stride)..), D of 1, 2 or 3; any sides at every call.

        mask: (b, S_1..S_D) bool, True for valid positions, False for padding. Outputs at valid positions and batch norm
        statistics are then independent of the padding; the output is 0 where the strided mask is False. In training,
        the data-dependent number of valid positions causes a graph break in torch.compile.
        """
        if isinstance(x, fx.Proxy):
            return self.fx_call(x, mask)
        check_tensors(x=x, mask=mask)
        if x.ndim != self.dimensions + 2 or x.shape[1] != self.dim:
            sides = ("length", "height, width", "depth, height, width")[self.dimensions - 1]
            raise ValueError(f"x must be (b, dim = {self.dim}, {sides}), got shape {tuple(x.shape)}")
        self._check_dtype("x", x)
        grid = shape_of(x)[2:]
        if torch.jit.is_tracing():
            x = x.expand(-1, -1, *grid)  # the trace is for this grid only, and raises for others
        if mask is not None:
            if mask.dtype != torch.bool or tuple(mask.shape) != (x.shape[0], *grid):
                raise ValueError(
                    f"mask must be bool, {(x.shape[0], *grid)}, True for valid positions; "
                    f"got {mask.dtype} of shape {tuple(mask.shape)}"
                )
            x = x.masked_fill(~mask.unsqueeze(1), 0)
        queries, keys, values = self._project(x, None, None if mask is None else mask.flatten(1))
        relative = isinstance(self.embedding, RelativeEmbedding)
        positions = queries.shape[2]
        output = self._interact(
            queries,
            keys,
            values,
            mask=None if mask is None else mask.flatten(1).unsqueeze(1),  # (b, 1, m)
            embeddings=None if self.embedding is None or relative else self._embeddings_of(positions, positions),
            table=self.embedding() if self.embedding is not None and relative else None,
            grid=grid,
            dilation=self.dilation,
            algorithm=self.algorithm,
        )
        # rows (b, n, h v) are channels-last maps; the gradient is converted to that layout once
        output = contiguous_gradient(output.transpose(1, 2).flatten(2)).mT.unflatten(2, grid)
        if mask is not None:
            output = output.masked_fill(~mask.unsqueeze(1), 0)
        if self.stride > 1 or self.pool is not None:
            output = self._pool(output, mask)
        return output.contiguous(memory_format=memory_format(x) or torch.contiguous_format)

    def _pool(self, output: Tensor, mask: Tensor | None) -> Tensor:
        """Average pooling over the valid positions: by `pool`, or with windows of 2 s - 1 and stride s."""
        pooled = self._average(output)
        if mask is None:
            return pooled
        # contiguous, so that torch.compile does not specialize on even and odd sizes
        strided = mask[(slice(None), *(slice(None, None, self.stride),) * self.dimensions)].contiguous().unsqueeze(1)
        if self.pool is None or not counts_padding(self.pool):
            valid_fraction = self._average(mask.unsqueeze(1).to(output.dtype))
            pooled = pooled / valid_fraction.clamp(min=torch.finfo(output.dtype).tiny)
        return pooled.masked_fill(~strided, 0)

    def _average(self, maps: Tensor) -> Tensor:
        return average_pool(maps, self.stride) if self.pool is None else self.pool(maps)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, stride={self.stride}, dilation={self.dilation}, algorithm={self.algorithm!r}"


class LambdaLayer1d(GridLambdaLayer):
    """Lambda layer on sequences (b, dim, length); arguments as LambdaLayer2d with one side for scope and grid.

    With causal=True outputs do not depend on later positions, and can be decoded step by step, see
    `lambdanets.start_decoding`. In training, batch norm still computes its statistics over all positions: use
    batch_norm=False where that matters, as in language models. For channels-last tokens see LambdaLayer.
    """

    dimensions = 1


class LambdaLayer2d(GridLambdaLayer):
    """Lambda layer (Bello, ICLR 2021, Eqs. 1 and 2) in place of a 3x3 convolution: long-range content and position.

    y[n,h] = (sum_m kbar[m] v[m]^T + sum_m e[n,m] v[m]^T)^T q[n,h], with the h outputs of a position concatenated.
    Queries, keys and values are 1x1 projections without bias; batch norm on queries and values; kbar is the softmax of
    the keys over the context; one table of relative embeddings e[n,m] = R[m - n], shared by the heads.

    Input (b, dim, H, W), any H and W at every call; output (b, dim_out, H', W') with H' = ceil(H / stride), in the
    memory format of the input. float64, float32, bfloat16, float16; autocast; accumulates in float32 or wider.
    `forward` also takes a padding mask.

    Args:
        dim, dim_out: channels in and out; dim_out defaults to dim and must be divisible by heads.
        query_depth: k, depth of queries and keys. heads: h, queries that share a lambda; the value depth is
            dim_out / heads. intra_depth: u, an extra dimension summed over in the lambdas (C.4).
        scope: odd side, or (height, width), of the local context of the position term; None for a global context, which
            needs `grid`, the largest (height, width) that the embedding table covers. On larger maps, offsets beyond it
            have no embedding. `layer.embedding.resize` interpolates the table.
        stride: average pooling after the layer, 3x3 for stride 2, as in the paper (F.2).
        dilation: spacing of the scope, in positions.
        content, position: whether to use the content term and the position term.
        normalize_keys: over the context (Table 11): "softmax", "l2" or None. normalize_queries: "softmax", over the
            query depth, or None. batch_norm: normalize queries and values.
        embedding: replaces the layer's own table (and scope): a RelativeEmbedding, which several layers may share, or
            any module that returns E (n, m, k[, u]) when called with n and m, such as a DenseEmbedding.
        multi_head: separate lambdas, keys, values and embeddings per head (C.3); by default heads share them.
        causal: only context positions up to and including the query in row-major order. Needs stride 1. In training
            batch norm still computes its statistics over all positions.
        position_bias: add a learned k-vector to every position lambda, for all value channels, as the bias of a Conv3d
            does in other packages; (h, k) with multi_head. Initialized to 0.
        pool: an nn.AvgPool2d with the stride of the layer, in place of the 3x3 average. Must round sides up.
        algorithm: of the position term, see `lambdanets.position_interaction`.

    Parameters: d h k + d k u + d v u + r r k u + 2 h k + 2 v u; with multi_head k u, v u and r r k u count h times.
    Cost per image: projections plus n k v u (1 + min(n, r r)) + 2 h n k v multiply-adds.
    Initialization (Sec. F.2): keys and values N(0, 1/sqrt(d)), queries N(0, 1/sqrt(k d)), embeddings N(0, 1).
    Appendix B: zero-initialize the last norm of each residual block, and use at most one lambda layer per block.
    Raises ValueError naming the invalid argument.
    """

    dimensions = 2


class LambdaLayer3d(GridLambdaLayer):
    """Lambda layer on volumes or video (b, dim, depth, height, width); arguments as LambdaLayer2d with three sides."""

    dimensions = 3


def _table_sides(dimensions: int, scope: Any, grid: Any) -> tuple[int, ...]:
    names = ("(length,)", "(height, width)", "(depth, height, width)")[dimensions - 1]
    if scope is None:
        if grid is None:
            raise ValueError(f"grid must be {names} if scope is None, got None")
        if not _are_sides(grid, dimensions):
            raise ValueError(f"grid must be {dimensions} positive sides, {names}, got {grid!r}")
        return tuple(2 * side - 1 for side in grid)
    if grid is not None:
        raise ValueError(f"grid must be None unless scope is None, got {grid} with a scope of {scope}")
    sides = (scope,) * dimensions if isinstance(scope, int) and not isinstance(scope, bool) else scope
    if not _are_sides(sides, dimensions) or any(side % 2 == 0 for side in sides):
        raise ValueError(f"scope must be odd and positive, one side or {names}, got {scope!r}")
    return tuple(sides)


def _are_sides(sides: Any, count: int) -> bool:
    ints = isinstance(sides, tuple) and all(isinstance(s, int) and not isinstance(s, bool) for s in sides)
    return ints and len(sides) == count and min(sides) >= 1
