"""The lambda layer on tokens, with any context, mask and position embeddings."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from lambdanets.layers.base import LambdaBase, LambdaInputs
from lambdanets.layers.embeddings import RelativeEmbedding
from lambdanets.ops.checks import check_tensors
from lambdanets.ops.pairs import expand_mask
from lambdanets.ops.tracing import fix_sides, static_shape


class LambdaLayer(LambdaBase):
    """Lambda layer on tokens (b, n, dim), like self-attention or cross-attention (Bello, ICLR 2021, Eqs. 1 and 2).

    y[n,h] = (sum_m kbar[n,m] v[m]^T + sum_m e[n,m] v[m]^T)^T q[n,h]. Queries come from x, keys and values from the
    context, which is x itself or another sequence. The embeddings e[n,m] can be relative, learned for each pair of
    positions, or depend on the edges of a graph (Sec. A.2).

    Args:
        dim: number of input channels.
        dim_out: number of output channels, divisible by heads; default dim.
        dim_context: number of channels of the context; default dim.
        embedding: position embeddings; default None. Either a 1-D RelativeEmbedding, or several, or
            any module that returns E (n, m, k[, u]) when called with n and m, such as a
            DenseEmbedding. Pass embeddings that differ between calls, such as those of graphs, to
            `forward` instead.

    The other arguments are those of LambdaLayer2d.
    Supported dtypes, autocast and initialization are those of LambdaLayer2d.
    Cost per example, if all examples have the same embeddings: projections plus (m + n m) k v u + 2 h n k v
    multiply-adds; `lambdanets.lambda_interaction` documents other cases.
    Raises ValueError naming the invalid argument.
    """

    is_token_layer, dimensions = True, 1

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        dim_context: int | None = None,
        query_depth: int = 16,
        heads: int = 4,
        intra_depth: int = 1,
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
        factory_kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(
            dim,
            dim_out,
            dim_context,
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
            projection=lambda dim, dim_out: nn.Linear(dim, dim_out, bias=False, **factory_kwargs),
            norm=lambda channels: nn.BatchNorm1d(channels, **factory_kwargs),
        )
        self.embedding = None if embedding is None else self._check_embedding(embedding, 1)
        self.reset_parameters()

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer to tokens; returns (b, n, dim_out).

        Args:
            x: (b, n, dim), the tokens that queries are computed from.
            context: (b, m, dim_context), the tokens that keys and values are computed from; default None for x.
            mask: bool, True where a query and a context position interact; default None for all pairs. (n, m) or
                (b, n, m), or (b, 1, m) to exclude padding of the context, (1, m) if it is equal in all examples.
                Outputs do not depend on excluded padding, and are 0 there if x is its own context. Batch norm in
                training excludes padding given by one row, but counts positions excluded by masks of several rows.
            embeddings: E (n, m, k[, u]) or (b, n, m, k[, u]), or with multi_head=True (h, n, m, k[, u]) or
                (b, h, n, m, k[, u]). Replaces the embedding module of the layer; default None.
        """
        if isinstance(x, fx.Proxy):
            return self.fx_call(x, context, mask=mask, embeddings=embeddings)
        inputs = self.prepare(x, context, mask=mask, embeddings=embeddings)
        return self.finish(self.sum_terms(inputs), inputs)

    def prepare(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> LambdaInputs:
        """Check and project the arguments of `forward`."""
        check_tensors({"context": context, "mask": mask, "embeddings": embeddings}, x=x)
        self._check_tokens("x", x, self.dim)
        if context is None:
            if self.dim_context != self.dim:
                raise ValueError(
                    f"context must be a tensor if dim_context = {self.dim_context} differs from dim, got None"
                )
        else:
            self._check_tokens("context", context, self.dim_context)
            if context.shape[0] != x.shape[0]:
                raise ValueError(f"context must have batch size {x.shape[0]}, like x, got shape {tuple(context.shape)}")
        if embeddings is not None and not self.position:
            raise ValueError("embeddings must be None for a layer with position=False, got a tensor")
        if self.position and embeddings is None:  # the embeddings are for these lengths
            x, context = fix_sides(x, 1), None if context is None else fix_sides(context, 1)
        source = x if context is None else context
        valid = None
        if mask is not None:
            mask = expand_mask(mask, x.shape[0], x.shape[1], source.shape[1])
            if mask.shape[-2] == 1:
                valid = mask[:, 0]
                source = source.masked_fill(~valid.unsqueeze(-1), 0)
                x = source if context is None else x
        queries, keys, values = self._project(x, None if context is None else source, valid)
        n, m = static_shape(x)[1], static_shape(source)[1]
        tables: tuple[Tensor, ...] = ()
        if self.position and embeddings is None:
            is_self_attention = context is None and (mask is None or valid is not None)
            tables, embeddings = self._embeddings(n, m, is_self_attention)
        return LambdaInputs(queries, keys, values, (n,), embeddings, tables, mask)

    def finish(self, output: Tensor, inputs: LambdaInputs) -> Tensor:
        """Return the interaction (b, h, n, v) as tokens (b, n, h v)."""
        return output.transpose(1, 2).flatten(2)

    def _embeddings(self, n: int, m: int, is_self_attention: bool) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return tables if x is its own context and embeddings are relative, else E of all pairs."""
        if self.embedding is None:
            raise ValueError(
                "embeddings must be a tensor, or embedding a module, for a layer with position=True, "
                "got None; pass one of them, or position=False"
            )
        relative = self.relative_embeddings
        if not relative:
            return (), self._pairwise_embeddings(n, m)
        if is_self_attention:
            return self._tables(), None
        pairs = [embedding.of_pairs((n,), (m,)) for embedding in relative]
        return (), functools.reduce(torch.add, pairs)

    def _check_tokens(self, name: str, tokens: Tensor, dim: int) -> None:
        if tokens.ndim != 3 or tokens.shape[2] != dim:
            raise ValueError(f"{name} must be (b, positions, channels = {dim}), got shape {tuple(tokens.shape)}")
        self._check_dtype(name, tokens)
