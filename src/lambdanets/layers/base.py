"""The base class of lambda layers: projections, normalization, content and position terms."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lambdanets.layers.embeddings import EmbeddingTable, RelativeEmbedding
from lambdanets.layers.initialization import set_initialization
from lambdanets.layers.module import Layer
from lambdanets.layers.pooling import average_pool, check_pool
from lambdanets.layers.projection import is_plain, project
from lambdanets.ops import lambda_interaction
from lambdanets.ops.checks import check_flags, check_sizes
from lambdanets.ops.content import check_normalization, mask_context, shared_lambda
from lambdanets.ops.position.choose import check_algorithm
from lambdanets.ops.position.position_term import compute_position_term
from lambdanets.ops.precision import accumulation_dtype, autocast_dtype, widen_float16, without_autocast


class LambdaInputs(NamedTuple):
    """What a layer computes its output from: queries, keys, values and position embeddings.

    queries: (b, h, n, k), 0 at padding.
    keys: (b, [h,] m, k[, u]), not yet normalized, or None.
    values: (b, [h,] m, v[, u]).
    grid: sides S_1..S_D of the map of queries; (n,) for tokens.
    embeddings: E ([b,] [h,] n, m, k[, u]) of all pairs, or None.
    tables: of relative embeddings on `grid`, ([h,] r_1..r_D, k[, u]) each; their terms are summed.
    mask: bool (n, m), (b, n, m), or (b, 1, m) for padding, the only one with tables; None for all
        pairs.
    """

    queries: Tensor
    keys: Tensor | None
    values: Tensor
    grid: tuple[int, ...]
    embeddings: Tensor | None
    tables: tuple[Tensor, ...]
    mask: Tensor | None

    def to(self, dtype: torch.dtype) -> "LambdaInputs":
        """Return the same in another dtype, unless it is in float64. Tables have their own."""
        if self.queries.dtype == torch.float64:
            return self
        floating = {name: getattr(self, name) for name in ("queries", "keys", "values", "embeddings")}
        return self._replace(**{name: x.to(dtype) for name, x in floating.items() if x is not None})


class LambdaBase(Layer, ABC):
    """Base class of the lambda layers: creates projections, norms and embeddings, and calls the operations.

    A forward pass is `prepare`, which returns LambdaInputs, `sum_terms`, and `finish`.

    By default the heads share one lambda, so keys (k, u) and values (v, u) are projected once per position. With
    multi_head=True they are projected once per head. LambdaLayer2d and LambdaLayer document the arguments.
    """

    query_projection: Any
    key_projection: Any
    value_projection: Any
    embedding: Any
    position_bias: nn.Parameter | None
    dimensions: int
    is_token_layer = False  # True if inputs are tokens (b, n, d), False if they are maps (b, d, S_1..S_D)

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        dim_context: int | None = None,
        query_depth: int = 16,
        heads: int = 4,
        intra_depth: int = 1,
        scope: int | tuple[int, ...] | None = 23,
        stride: int = 1,
        dilation: int = 1,
        content: bool | str = True,
        position: bool = True,
        normalize_keys: str | None = "softmax",
        normalize_queries: str | None = None,
        batch_norm: bool = True,
        embedding: nn.Module | Sequence[RelativeEmbedding] | None = None,
        grid: tuple[int, ...] | None = None,
        multi_head: bool = False,
        causal: bool = False,
        position_bias: bool = False,
        pool: nn.Module | None = None,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dim_out = dim if dim_out is None else dim_out
        dim_context = dim if dim_context is None else dim_context
        check_sizes(dim=dim, dim_out=dim_out, query_depth=query_depth, heads=heads, intra_depth=intra_depth)
        check_sizes(dim_context=dim_context, stride=stride, dilation=dilation)
        check_flags(position=position, batch_norm=batch_norm, multi_head=multi_head, causal=causal)
        check_normalization(normalize_keys)
        check_algorithm(algorithm)
        if dim_context != dim and not self.is_token_layer:
            raise ValueError(f"dim_context must be None for layers on maps, got {dim_context}")
        if dim_out % heads:
            raise ValueError(f"dim_out must be divisible by heads = {heads}, got {dim_out}")
        if content not in (True, False) and not (content == "slices" and self.dimensions == 3):
            raise ValueError(f"content must be True, False or, for LambdaLayer3d, 'slices', got {content!r}")
        if not (content or position):
            raise ValueError("content and position must not both be False")
        if normalize_queries not in ("softmax", None):
            raise ValueError(f"normalize_queries must be 'softmax' or None, got {normalize_queries!r}")
        if embedding is not None and not position:
            raise ValueError("embedding must be None when position is False")
        if (causal or self.is_token_layer) and (stride != 1 or pool is not None):
            raise ValueError(
                "stride must be 1 and pool None if causal is True, because pooling includes later positions, and for "
                f"tokens; got stride={stride}, pool={pool}"
            )
        if pool is not None:
            check_pool(pool, stride, self.dimensions)
        self.dim, self.dim_out, self.dim_context = dim, dim_out, dim_context
        self.query_depth, self.heads, self.intra_depth = query_depth, heads, intra_depth
        self.value_depth = dim_out // heads
        self.normalize_keys, self.normalize_queries = normalize_keys, normalize_queries
        self.multi_head, self.causal, self.position = multi_head, causal, position
        self.content_by_slice = content == "slices"
        self.stride, self.dilation, self.algorithm = stride, dilation, algorithm
        self.pool = average_pool(stride, self.dimensions) if pool is None and stride > 1 else pool
        factory_kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        num_lambdas = heads if multi_head else 1
        query_channels, value_channels = heads * query_depth, num_lambdas * self.value_depth * intra_depth
        self.query_projection = self._projection(dim, query_channels, query_depth, **factory_kwargs)
        key_channels = num_lambdas * query_depth * intra_depth
        self.key_projection = self._projection(dim_context, key_channels, **factory_kwargs) if content else None
        self.value_projection = self._projection(dim_context, value_channels, **factory_kwargs)
        norm_type = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[self.dimensions - 1] if batch_norm else nn.Identity
        self.query_norm = norm_type(query_channels, **factory_kwargs)
        self.value_norm = norm_type(value_channels, **factory_kwargs)
        bias_shape = (heads, query_depth) if multi_head else (query_depth,)
        self.position_bias = nn.Parameter(torch.zeros(bias_shape, **factory_kwargs)) if position_bias else None
        self._owns_embedding = embedding is None
        if isinstance(embedding, Sequence | nn.ModuleList):
            if not embedding or not all(isinstance(e, RelativeEmbedding) for e in embedding):
                raise ValueError(f"embedding must be a module or several RelativeEmbeddings, got {embedding!r}")
            embedding = nn.ModuleList(embedding)
        elif embedding is None and position and not (self.is_token_layer and scope is grid is None):
            if isinstance(grid, Sequence) != (scope is None) or (scope is not None and grid is not None):
                needed = "a tuple of sides if scope is None, else None"
                raise ValueError(f"grid must be {needed}, got {grid} and scope={scope}")
            sides: Any = scope if grid is None else tuple(2 * side - 1 for side in grid)
            sides = tuple(sides) if isinstance(sides, Sequence) else (sides,) * self.dimensions
            if len(sides) != self.dimensions:
                name = "scope" if grid is None else "grid"
                raise ValueError(f"{name} must have {self.dimensions} side(s), got {grid or scope}")
            table_heads = heads if multi_head else None
            embedding = RelativeEmbedding(sides, query_depth, intra_depth, heads=table_heads, **factory_kwargs)
        self.embedding = embedding
        expected = (query_depth, intra_depth, heads if multi_head else None)
        for each in embedding if isinstance(embedding, nn.ModuleList) else (embedding,):
            # heads would otherwise be taken for examples, or for offsets
            if isinstance(each, EmbeddingTable) and (each.query_depth, each.intra_depth, each.heads) != expected:
                got = (each.query_depth, each.intra_depth, each.heads)
                raise ValueError(f"embedding must have (query_depth, intra_depth, heads) = {expected}, got {got}")
        if dilation != 1 and position and not self.relative_embeddings:
            raise ValueError(f"dilation must be 1 unless embedding is a RelativeEmbedding, got {dilation}")
        self.reset_parameters()

    def _projection(self, dim: int, channels: int, depth: int = 1, **factory_kwargs: Any) -> nn.Module:
        """Return a projection without bias, initialized with std 1/sqrt(depth dim)."""
        if self.is_token_layer:
            projection: nn.Module = nn.Linear(dim, channels, bias=False, **factory_kwargs)
        else:
            convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.dimensions - 1]
            projection = convolution(dim, channels, 1, bias=False, **factory_kwargs)
        set_initialization(projection, (depth * dim) ** -0.5)
        return projection

    def reset_parameters(self) -> None:
        """Re-initialize projections, norms, position bias and the layer's own embedding table (Sec. F.2 of the paper).

        An embedding module passed to the constructor is not re-initialized, because other layers may share it.
        """
        if self.position_bias is not None:
            nn.init.zeros_(self.position_bias)
        children: Any = self.children()
        for module in children:
            if hasattr(module, "reset_parameters") and (self._owns_embedding or module is not self.embedding):
                module.reset_parameters()

    def _project(self, x: Tensor, context: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return queries (b, h, n, k), keys (b, [h,] m, k[, u]) or None, and values (b, [h,] m, v[, u]).

        context: the source of keys and values; None for x itself.
        valid: bool (b, m), False at padded positions of the context; None if there is no padding.
        """
        is_tokens = self.is_token_layer
        modules: Any = self._modules  # attributes of a module take longer
        query_modules = (modules["query_projection"], modules["query_norm"])
        context_modules = [(modules["value_projection"], modules["value_norm"])]
        if modules.get("key_projection") is not None:
            context_modules.append((modules["key_projection"], None))
        if context is None:
            queries, values, *keys = project(x, [query_modules, *context_modules], is_tokens=is_tokens, valid=valid)
        else:
            (queries,) = project(x, [query_modules], is_tokens=is_tokens)
            values, *keys = project(context, context_modules, is_tokens=is_tokens, valid=valid)
        queries = queries.unflatten(1, (self.heads, self.query_depth)).transpose(2, 3)
        if self.normalize_queries == "softmax":
            queries = queries.softmax(dim=-1, dtype=accumulation_dtype(queries.dtype)).to(queries.dtype)
        if valid is not None and context is None:  # a query of 0 gives an output of 0
            queries = queries.masked_fill(~valid[:, None, :, None], 0)
        return (
            queries,
            self._reshape_context(keys[0], self.query_depth) if keys else None,
            self._reshape_context(values, self.value_depth),
        )

    def _reshape_context(self, projected: Tensor, depth: int) -> Tensor:
        """Reshape (b, [h] depth u, m) to keys or values (b, [h,] m, depth[, u])."""
        heads = (self.heads,) if self.multi_head else ()
        intra = () if self.intra_depth == 1 else (self.intra_depth,)
        if not heads and not intra:
            return projected.transpose(1, 2)
        projected = projected.unflatten(1, (*heads, depth, *intra))
        return projected.movedim(projected.ndim - 1, 1 + len(heads))

    @abstractmethod
    def prepare(self, *inputs: Any, **kwargs: Any) -> LambdaInputs:
        """Check and project the arguments of `forward`."""

    @abstractmethod
    def finish(self, output: Tensor, inputs: LambdaInputs) -> Tensor:
        """Convert the interaction (b, h, n, v) to the layout of the layer's output, and pool it if configured."""

    def sum_terms(self, inputs: LambdaInputs, channels_first: bool = False) -> Tensor:
        """Return the sum of the content term and the position term, (b, h, n, v).

        channels_first: whether it should be in memory as (b, h, v, n).
        """
        queries, keys, values, grid, _, tables, mask = inputs
        device = queries.device
        if queries.dtype == torch.float16 or (not queries.is_meta and torch.is_autocast_enabled(device.type)):
            autocast = autocast_dtype(device)
            with without_autocast(device):
                output = self.sum_terms(inputs.to(widen_float16(autocast or queries.dtype)), channels_first)
            return output if autocast else output.to(queries.dtype)
        content, bias = None, self.position_bias
        terms: list[Tensor] = []
        if tables and mask is not None:  # (b, 1, m); keys and values are (b, [h,] m, ..[, u])
            valid = mask if self.multi_head else mask[:, 0]
            keys, values = mask_context(keys, values, valid, self.normalize_keys)
        shares_lambda = not (self.multi_head or self.causal or self.content_by_slice)
        if keys is not None and tables and shares_lambda:  # the position interaction adds its term
            content = shared_lambda(keys, values, self.normalize_keys)
            if bias is not None:
                content = content + bias.to(content.dtype).unsqueeze(-1)
        options = (grid, self.dilation, self.causal, self.algorithm, channels_first)
        for i, table in enumerate(tables):
            if self.multi_head:
                heads = zip(queries.split(1, 1), table.unbind(), values.unbind(1), strict=True)
                terms.append(torch.cat([compute_position_term(q, r, v, None, *options) for q, r, v in heads], dim=1))
            else:
                terms.append(compute_position_term(queries, table, values, None if i else content, *options))
        output = functools.reduce(torch.add, terms) if terms else self.pair_terms(inputs)
        if terms and keys is not None and content is None:
            output = self.pair_terms(inputs) + output
        return output if bias is None or content is not None else output + self._bias_term(queries)

    def pair_terms(self, inputs: LambdaInputs) -> Tensor:
        """The content term plus the position term from `embeddings`, (b, h, n, v), without tables."""
        return lambda_interaction(
            inputs.queries,
            inputs.keys,
            inputs.values,
            inputs.embeddings,
            mask=inputs.mask,
            multi_head=self.multi_head,
            normalize_keys=self.normalize_keys,
            causal=self.causal,
        )

    def _bias_term(self, queries: Tensor) -> Tensor:
        """Return the position bias applied to queries (b, h, n, k): (b, h, n, 1), equal for all value channels."""
        assert self.position_bias is not None
        bias = self.position_bias.unsqueeze(1) if self.multi_head else self.position_bias  # (h, 1, k) or (k,)
        dtype = accumulation_dtype(queries.dtype)
        return (queries.to(dtype) * bias.to(dtype)).sum(-1, keepdim=True).to(queries.dtype)

    def tables(self) -> tuple[Tensor, ...]:
        """The tables of the relative embeddings; calls respect hooks, pruning and subclasses, but take longer."""
        embedding: Any = self._modules.get("embedding")
        if is_plain(embedding, (RelativeEmbedding,)):
            return (embedding.table,)
        return tuple([relative() for relative in self.relative_embeddings])

    @property
    def relative_embeddings(self) -> tuple[RelativeEmbedding, ...]:
        """The relative embeddings, whose terms are summed; () for other embeddings."""
        embedding: Any = self._modules.get("embedding")
        modules: Any = embedding if isinstance(embedding, nn.ModuleList) else (embedding,)
        return tuple([module for module in modules if isinstance(module, RelativeEmbedding)])

    def extra_repr(self) -> str:
        names = ("query_depth", "heads", "intra_depth", "stride", "dilation", "normalize_keys", "normalize_queries")
        options = [f"{name}={getattr(self, name)!r}" for name in (*names, "multi_head", "causal", "algorithm")]
        return ", ".join([f"{self.dim}, {self.dim_out}", *options])
