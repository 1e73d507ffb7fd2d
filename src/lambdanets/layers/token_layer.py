"""The lambda layer on tokens, with any context, mask and position embeddings."""

import functools
from typing import Any

import torch
from torch import Tensor, fx

from lambdanets.layers.base import LambdaBase, LambdaInputs
from lambdanets.ops.checks import check_shape
from lambdanets.ops.pairs import expand_mask
from lambdanets.ops.precision import autocast_dtype
from lambdanets.ops.tracing import fix_sides


class LambdaLayer(LambdaBase):
    """Lambda layer on tokens (b, n, dim), like self-attention or cross-attention (Bello, ICLR 2021, Eqs. 1 and 2).

    y[n,h] = (sum_m kbar[n,m] v[m]^T + sum_m e[n,m] v[m]^T)^T q[n,h]. Queries come from x, keys and values from the
    context, which is x itself or another sequence. The embeddings e[n,m] can be relative, learned for each pair of
    positions, or depend on the edges of a graph (Sec. A.2).

    Args:
        dim: number of input channels.
        dim_out: number of output channels, divisible by heads; default dim.
        dim_context: number of channels of the context; default dim.
        scope: number of embeddings of the layer's own table of relative embeddings, odd, such as 63; default None for
            none: then pass `embedding`, position=False, or embeddings to `forward`.
        options: the other arguments of LambdaLayer2d, except stride and pool. Pass embeddings that differ between
            calls, such as those of graphs, to `forward`.

    Supported dtypes, autocast and initialization are those of LambdaLayer2d.
    Cost per example, if all examples have the same embeddings: projections plus (m + n m) k v u + 2 h n k v
    multiply-adds; `lambdanets.lambda_interaction` documents other cases.
    Raises ValueError naming the invalid argument.
    """

    is_token_layer, dimensions = True, 1

    def __init__(self, dim: int, dim_out: int | None = None, *, scope: int | None = None, **options: Any) -> None:
        super().__init__(dim, dim_out, scope=scope, **options)

    def forward(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, embeddings: Tensor | None = None
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
                (b, h, n, m, k[, u]). Replaces the embedding module of the layer, also without position; default None.
        """
        if isinstance(x, fx.Proxy):
            return self.fx_call(x, context, mask=mask, embeddings=embeddings)
        inputs = self.prepare(x, context, mask=mask, embeddings=embeddings)
        return self.finish(self.sum_terms(inputs), inputs)

    def prepare(
        self, x: Tensor, context: Tensor | None = None, *, mask: Tensor | None = None, embeddings: Tensor | None = None
    ) -> LambdaInputs:
        """Check and project the arguments of `forward`."""
        sizes = {"dim": self.dim, "dim_context": self.dim_context}
        check_shape(sizes, "x", x, "b n dim")
        check_shape(sizes, "context", x if context is None else context, "b m dim_context")
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
        n, m = sizes["n"], sizes["m"]
        tables: tuple[Tensor, ...] = ()
        if self.position and embeddings is None:
            relative = self.relative_embeddings
            if self.embedding is None:
                raise ValueError(
                    "embeddings must be a tensor unless the layer has a scope or an embedding, got None; "
                    "create the layer with scope=63, for example, or with position=False for content alone"
                )
            if not relative:
                embeddings = self.embedding(n, m)
            elif context is None and (mask is None or valid is not None):
                tables = self.tables()
            else:
                pairs = [embedding.of_pairs((n,), (m,), dilation=self.dilation) for embedding in relative]
                embeddings = functools.reduce(torch.add, pairs)
                if autocast_dtype(x.device) is None:
                    embeddings = embeddings.to(queries.dtype)  # tables may be wider
        return LambdaInputs(queries, keys, values, (n,), embeddings, tables, mask)

    def finish(self, output: Tensor, inputs: LambdaInputs) -> Tensor:
        """Return the interaction (b, h, n, v) as tokens (b, n, h v)."""
        return output.transpose(1, 2).flatten(2)
