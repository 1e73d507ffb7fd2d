"""The base class of lambda layers: projections, normalization, content and position terms."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lambdanets.layers.embeddings import EmbeddingTable, RelativeEmbedding
from lambdanets.layers.initialization import set_initialization
from lambdanets.layers.module import Layer
from lambdanets.layers.projection import is_plain, project
from lambdanets.ops import lambda_interaction
from lambdanets.ops.checks import check_flags, check_sizes
from lambdanets.ops.content import check_normalization, mask_context, shared_lambda
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
    """Base class of the lambda layers: checks arguments, creates projections and norms, and calls the operations.

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
    dilation = 1
    algorithm = "auto"
    content_by_slice = False  # True for a LambdaLayer3d with one content lambda per slice
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
        scope: int | tuple[int, ...] | None = None,
        content: bool = True,
        position: bool = True,
        embedding: nn.Module | Sequence[RelativeEmbedding] | None = None,
        normalize_keys: str | None = "softmax",
        normalize_queries: str | None = None,
        batch_norm: bool = True,
        multi_head: bool = False,
        causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dim_out = dim if dim_out is None else dim_out
        dim_context = dim if dim_context is None else dim_context
        check_sizes(
            dim=dim,
            dim_out=dim_out,
            dim_context=dim_context,
            query_depth=query_depth,
            heads=heads,
            intra_depth=intra_depth,
        )
        check_flags(content=content, position=position, batch_norm=batch_norm, multi_head=multi_head, causal=causal)
        if dim_out % heads:
            raise ValueError(f"dim_out must be divisible by heads = {heads}, got {dim_out}")
        if not (content or position):
            raise ValueError("content and position must not both be False")
        check_normalization(normalize_keys)
        if normalize_queries not in ("softmax", None):
            raise ValueError(f"normalize_queries must be 'softmax' or None, got {normalize_queries!r}")
        self.dim, self.dim_out, self.dim_context = dim, dim_out, dim_context
        self.query_depth, self.heads, self.intra_depth = query_depth, heads, intra_depth
        self.value_depth = dim_out // heads
        self.normalize_keys, self.normalize_queries = normalize_keys, normalize_queries
        self.multi_head, self.causal, self.position = multi_head, causal, position
        factory_kwargs: dict[str, Any] = {"device": device, "dtype": dtype}

        def projection(dim: int, channels: int) -> nn.Module:
            if self.is_token_layer:
                return nn.Linear(dim, channels, bias=False, **factory_kwargs)
            convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.dimensions - 1]
            return convolution(dim, channels, 1, bias=False, **factory_kwargs)

        def norm(channels: int) -> nn.Module:
            norm_type = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[self.dimensions - 1]
            return norm_type(channels, **factory_kwargs) if batch_norm else nn.Identity()

        num_lambdas = heads if multi_head else 1
        self.query_projection = projection(dim, heads * query_depth)
        self.key_projection = projection(dim_context, num_lambdas * query_depth * intra_depth) if content else None
        self.value_projection = projection(dim_context, num_lambdas * self.value_depth * intra_depth)
        set_initialization(self.query_projection, (query_depth * dim) ** -0.5)
        for projected in (self.key_projection, self.value_projection):
            if projected is not None:
                set_initialization(projected, dim_context**-0.5)
        self.register_parameter("position_bias", None)
        self.query_norm = norm(heads * query_depth)
        self.value_norm = norm(num_lambdas * self.value_depth * intra_depth)
        if embedding is not None and not position:
            raise ValueError("embedding must be None when position is False")
        if isinstance(embedding, Sequence | nn.ModuleList):
            if not embedding or not all(isinstance(e, RelativeEmbedding) for e in embedding):
                raise ValueError(f"embedding must be a module or several RelativeEmbeddings, got {embedding!r}")
            embedding = nn.ModuleList(embedding)
        table_heads = heads if multi_head else None
        for each in embedding if isinstance(embedding, nn.ModuleList) else (embedding,):
            if isinstance(each, EmbeddingTable):
                self._check_table(each, (query_depth, intra_depth, table_heads))
        self._owns_embedding = embedding is None
        if embedding is None and scope is not None and position:
            sides = (scope,) * self.dimensions if isinstance(scope, int) else scope
            embedding = RelativeEmbedding(sides, query_depth, intra_depth, heads=table_heads, **factory_kwargs)
        self.embedding = embedding
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Re-initialize projections, norms, position bias and the layer's own embedding table (Sec. F.2 of the paper).

        An embedding module passed to the constructor is not re-initialized, because other layers may share it.
        """
        if self.position_bias is not None:
            nn.init.zeros_(self.position_bias)
        own_embedding = self.embedding if self._owns_embedding else None
        projections = (self.query_projection, self.key_projection, self.value_projection)
        for module in (*projections, self.query_norm, self.value_norm, own_embedding):
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()

    def _check_table(self, embedding: EmbeddingTable, expected: tuple[int, int, int | None]) -> None:
        actual = (embedding.query_depth, embedding.intra_depth, embedding.heads)
        if actual != expected:
            raise ValueError(
                f"embedding must have the (query_depth, intra_depth, heads) of the layer, {expected}, got {actual}; "
                "heads is None unless the layer has multi_head=True"
            )
        if isinstance(embedding, RelativeEmbedding) and embedding.dimensions != self.dimensions:
            raise ValueError(
                f"embedding must have {self.dimensions} dimension(s), got {embedding.dimensions}; use LambdaLayer1d, "
                "2d or 3d, or pass embedding.of_pairs(grid) to LambdaLayer.forward"
            )

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
        queries, keys, values, *_, tables, mask = inputs
        device = queries.device
        if queries.dtype == torch.float16 or (not queries.is_meta and torch.is_autocast_enabled(device.type)):
            autocast = autocast_dtype(device)
            with without_autocast(device):
                output = self.sum_terms(inputs.to(widen_float16(autocast or queries.dtype)), channels_first)
            return output if autocast else output.to(queries.dtype)
        content, bias = None, self.position_bias
        if not tables:
            output = self.pair_terms(inputs)
        else:
            if mask is not None:  # (b, 1, m); keys and values are (b, [h,] m, ..[, u])
                valid = mask if self.multi_head else mask[:, 0]
                keys, values = mask_context(keys, values, valid, self.normalize_keys)
            shares_lambda = not (self.multi_head or self.causal or self.content_by_slice)
            if keys is not None and shares_lambda:  # the position interaction adds its term
                content = shared_lambda(keys, values, self.normalize_keys)
                if bias is not None:
                    content = content + bias.to(content.dtype).unsqueeze(-1)
            output = self._position_term(tables[0], content, values, inputs, channels_first)
            for table in tables[1:]:
                output = output + self._position_term(table, None, values, inputs, channels_first)
            if keys is not None and content is None:
                output = self.pair_terms(inputs) + output
        if bias is None or content is not None:
            return output
        return output + self._bias_term(queries).to(output.dtype)

    def _position_term(
        self,
        table: Tensor,
        content: Tensor | None,
        values: Tensor,
        inputs: LambdaInputs,
        channels_first: bool,
    ) -> Tensor:
        """Return the position term of a table plus that of a content lambda (b, k, v)."""
        options = (inputs.grid, self.dilation, self.causal, self.algorithm, channels_first)
        queries = inputs.queries
        if not self.multi_head:
            return compute_position_term(queries, table, values, content, *options)
        terms = [
            compute_position_term(queries[:, i : i + 1], table[i], values[:, i], None, *options)
            for i in range(self.heads)
        ]
        return torch.cat(terms, dim=1)

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
        return (queries.to(dtype) * bias.to(dtype)).sum(-1, keepdim=True)

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
        options = {name: getattr(self, name) for name in ("query_depth", "heads", "intra_depth")}
        defaults = {"normalize_keys": "softmax", "normalize_queries": None, "multi_head": False, "causal": False}
        options |= {name: getattr(self, name) for name, default in defaults.items() if getattr(self, name) != default}
        if self.position_bias is not None:
            options["position_bias"] = True
        return ", ".join([f"{self.dim}, {self.dim_out}", *(f"{name}={value!r}" for name, value in options.items())])
