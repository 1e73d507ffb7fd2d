"""The lambda layer on an image, channels first like torch.nn.Conv2d."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.layers.contiguous_gradient import contiguous_gradient
from lambdanets.layers.embeddings import RelativeEmbedding
from lambdanets.ops import content_lambda, position_interaction
from lambdanets.ops.position.plan import check_algorithm
from lambdanets.ops.precision import autocast_dtype, without_autocast


class LambdaLayer2d(nn.Module):
    """Lambda layer (Bello, ICLR 2021, Eqs. 1 and 2) in place of a 3x3 convolution: long-range content and position.

    y[n,h] = (sum_m softmax_m(k)[m] v[m]^T + sum_m e[n,m] v[m]^T)^T q[n,h], with the h outputs of a position
    concatenated. Queries, keys and values are 1x1 projections without bias; batch norm on queries and values; one
    table of relative embeddings e[n,m] = R[m - n] shared by the heads.

    Input (b, dim, H, W), any H and W at every call, contiguous or channels_last, which the output keeps; output
    (b, dim_out, H', W') with H' = ceil(H / stride). float64, float32, bfloat16, float16; autocast; the sums of the
    operation are kept in float32 or wider.

    Args:
        dim, dim_out: channels in and out; dim_out defaults to dim and must be divisible by heads.
        query_depth: k, depth of queries and keys. heads: h, queries that share a lambda; the value depth is
            dim_out / heads. intra_depth: u, an extra dimension summed over in the lambdas (C.4).
        scope: odd side, or (height, width), of the positions that interact by position; None for all of them, which
            needs `grid`, the largest (height, width) the table of embeddings is to cover. Larger maps than that count
            as having no embedding beyond it.
        stride: average pooling after the layer, 3x3 for stride 2, as the paper downsamples (F.2).
        dilation: positions between neighbours of the scope.
        content, position: keep the content term, the position term.
        batch_norm: normalize queries and values.
        algorithm: of the position term, see `lambdanets.position_interaction`.

    Parameters: d h k + d k u + d v u + r r k u + 2 h k + 2 v u. Cost per image: projections plus
    n k v u (1 + min(n, r r)) + 2 h n k v multiply-adds.
    Initialised as Sec. F.2 says: keys and values N(0, 1/sqrt(d)), queries N(0, 1/sqrt(k d)), embeddings N(0, 1).
    Raises ValueError naming the argument that does not fit; NotImplementedError for normalize_keys other than
    "softmax", normalize_queries, embedding, multi_head and causal.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        query_depth: int = 16,
        heads: int = 4,
        intra_depth: int = 1,
        scope: int | tuple[int, int] | None = 23,
        stride: int = 1,
        dilation: int = 1,
        content: bool = True,
        position: bool = True,
        normalize_keys: str | None = "softmax",
        normalize_queries: str | None = None,
        batch_norm: bool = True,
        embedding: nn.Module | None = None,
        grid: tuple[int, int] | None = None,
        multi_head: bool = False,
        causal: bool = False,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dim_out = dim if dim_out is None else dim_out
        _refuse_what_is_missing(normalize_keys, normalize_queries, embedding, multi_head, causal)
        sizes = {"dim": dim, "dim_out": dim_out, "query_depth": query_depth, "heads": heads}
        for name, size in (sizes | {"intra_depth": intra_depth, "stride": stride, "dilation": dilation}).items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")
        for name, flag in {"content": content, "position": position, "batch_norm": batch_norm}.items():
            if not isinstance(flag, bool):
                raise ValueError(f"{name} must be True or False, got {flag!r}")
        if dim_out % heads:
            raise ValueError(f"dim_out must be divisible by heads = {heads}, got {dim_out}")
        if not (content or position):
            raise ValueError("content and position are both False: a lambda layer needs at least one of them")
        check_algorithm(algorithm)
        self.dim, self.dim_out = dim, dim_out
        self.query_depth, self.heads, self.intra_depth = query_depth, heads, intra_depth
        self.value_depth = dim_out // heads
        self.stride, self.dilation, self.algorithm = stride, dilation, algorithm

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.query_projection = nn.Conv2d(dim, heads * query_depth, 1, bias=False, **factory)
        self.key_projection = nn.Conv2d(dim, query_depth * intra_depth, 1, bias=False, **factory) if content else None
        self.value_projection = nn.Conv2d(dim, self.value_depth * intra_depth, 1, bias=False, **factory)
        self.query_norm = nn.BatchNorm2d(heads * query_depth, **factory) if batch_norm else nn.Identity()
        self.value_norm = nn.BatchNorm2d(self.value_depth * intra_depth, **factory) if batch_norm else nn.Identity()
        self.embedding = None
        if position:
            self.embedding = RelativeEmbedding(_sides_of_table(scope, grid), query_depth, intra_depth, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections and embeddings afresh (Sec. F.2); the norms start as the identity."""
        nn.init.normal_(self.query_projection.weight, std=(self.query_depth * self.dim) ** -0.5)
        nn.init.normal_(self.value_projection.weight, std=self.dim**-0.5)
        if self.key_projection is not None:
            nn.init.normal_(self.key_projection.weight, std=self.dim**-0.5)
        if self.embedding is not None:
            self.embedding.reset_parameters()
        for norm in (self.query_norm, self.value_norm):
            if isinstance(norm, nn.BatchNorm2d):
                norm.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """(b, dim, H, W) -> (b, dim_out, ceil(H / stride), ceil(W / stride))."""
        if x.ndim != 4 or x.shape[1] != self.dim:
            raise ValueError(f"x must be (b, dim = {self.dim}, height, width), got shape {tuple(x.shape)}")
        expected = self.value_projection.weight.dtype
        if x.dtype != expected and not (x.is_floating_point() and autocast_dtype(x.device)):
            raise ValueError(f"x must have the dtype of the layer's parameters, {expected}, got {x.dtype}")
        grid = (x.shape[2], x.shape[3])
        queries = contiguous_gradient(self.query_norm(self.query_projection(x)))
        values = contiguous_gradient(self.value_norm(self.value_projection(x)))
        queries = queries.unflatten(1, (self.heads, self.query_depth)).flatten(3).transpose(2, 3)  # (b, h, n, k)
        values = self._as_context(values, self.value_depth)  # (b, n, v[, u])
        output = None
        if self.key_projection is not None:
            keys = self._as_context(self.key_projection(x), self.query_depth)
            with without_autocast(x.device):
                content = content_lambda(keys, values)
                # (b, h, n, k) (b, 1, k, v) -> (b, h, n, v)
                output = queries.to(content.dtype) @ content.unsqueeze(1)
        if self.embedding is not None:
            table = self.embedding()
            position = position_interaction(
                queries, table, values, grid, dilation=self.dilation, algorithm=self.algorithm
            )
            output = position if output is None else output + position
        assert output is not None
        output = output.transpose(2, 3).reshape(x.shape[0], self.dim_out, *grid)
        if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
            output = output.contiguous(memory_format=torch.channels_last)
        if self.stride > 1:
            side = 2 * self.stride - 1
            output = F.avg_pool2d(output, side, self.stride, self.stride - 1, count_include_pad=False)
        return output

    def _as_context(self, maps: Tensor, depth: int) -> Tensor:
        """(b, depth * u, H, W) -> (b, n, depth[, u])."""
        maps = maps.flatten(2).transpose(1, 2)
        return maps if self.intra_depth == 1 else maps.unflatten(2, (depth, self.intra_depth))

    def extra_repr(self) -> str:
        return (
            f"{self.dim}, {self.dim_out}, query_depth={self.query_depth}, heads={self.heads}, "
            f"intra_depth={self.intra_depth}, stride={self.stride}, dilation={self.dilation}, "
            f"algorithm={self.algorithm!r}"
        )


def _sides_of_table(scope: int | tuple[int, int] | None, grid: tuple[int, int] | None) -> tuple[int, int]:
    if scope is None:
        if grid is None:
            raise ValueError(
                "grid must be given as (height, width) when scope is None, to size the embeddings; got None"
            )
        if not _are_two_sides(grid):
            raise ValueError(f"grid must be two positive sides, (height, width), got {grid!r}")
        return 2 * grid[0] - 1, 2 * grid[1] - 1
    if grid is not None:
        raise ValueError(f"grid must be None unless scope is None (a scope of {scope} serves any grid), got {grid}")
    sides = (scope, scope) if isinstance(scope, int) else scope
    if not _are_two_sides(sides) or any(side % 2 == 0 for side in sides):
        raise ValueError(f"scope must be odd and positive, one side or (height, width), got {scope!r}")
    return sides[0], sides[1]


def _are_two_sides(sides: Any) -> bool:
    return isinstance(sides, tuple) and len(sides) == 2 and all(isinstance(s, int) and s >= 1 for s in sides)


def _refuse_what_is_missing(
    normalize_keys: str | None,
    normalize_queries: str | None,
    embedding: nn.Module | None,
    multi_head: bool,
    causal: bool,
) -> None:
    if normalize_keys != "softmax":
        raise NotImplementedError(f"normalize_keys={normalize_keys!r}: only 'softmax' is served yet (Table 11)")
    if normalize_queries is not None:
        raise NotImplementedError(f"normalize_queries={normalize_queries!r}: only None is served yet (Table 11)")
    if embedding is not None:
        raise NotImplementedError(
            "embedding: a module shared by layers or of another structure is not served yet (A.2)"
        )
    if multi_head:
        raise NotImplementedError("multi_head=True: a lambda per head is not served yet (C.3)")
    if causal:
        raise NotImplementedError("causal=True: masked contexts are not served yet (C.2)")
