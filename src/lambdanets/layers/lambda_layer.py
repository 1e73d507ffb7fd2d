"""Lambda layers on sequences, images and volumes, channels first like torch.nn.Conv1d, Conv2d and Conv3d."""

import math

import torch
from torch import Tensor, fx

from lambdanets.layers.base import LambdaBase, LambdaInputs
from lambdanets.layers.embeddings import DenseEmbedding
from lambdanets.layers.pooling import counts_padding
from lambdanets.layers.projection import contiguous_gradient
from lambdanets.ops.tracing import fix_sides, static_shape


class GridLambdaLayer(LambdaBase):
    """Base class of LambdaLayer1d, LambdaLayer2d and LambdaLayer3d, which differ only in `dimensions`."""

    origin: object = None  # the `Origin` of adopted weights, set by `lambdanets.adoption`

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the layer to maps of any size; returns (b, dim_out, ceil(S_1 / stride), ..., ceil(S_D / stride)).

        Args:
            x: (b, dim, S_1..S_D), with D = 1, 2 or 3 spatial dimensions. The sides may differ between calls.
            mask: bool (b, S_1..S_D), or (1, S_1..S_D) for all examples, True at valid positions, False at padding;
                default None for no padding. Outputs at valid positions and batch norm statistics then do not depend on
                the padding. The output is 0 where the mask, sampled with the stride, is False. In training, a mask
                causes a graph break in torch.compile, because the number of valid positions depends on the data.
        """
        if isinstance(x, fx.Proxy):
            return self.fx_call(x, mask=mask)
        inputs = self.prepare(x, mask)
        is_contiguous = x.is_contiguous()
        # pooling contiguous maps costs more than their copy
        output = self.finish(self.sum_terms(inputs, channels_first=is_contiguous and self.pool is None), inputs)
        if is_contiguous or x.stride(1) != 1:
            return output.contiguous()
        # a memory format would be an error in vmap and ONNX
        return output if output.stride(1) == 1 else output.movedim(1, -1).contiguous().movedim(-1, 1)

    def prepare(self, x: Tensor, mask: Tensor | None = None) -> LambdaInputs:
        """Check and project the arguments of `forward`."""
        if x.ndim != self.dimensions + 2 or x.shape[1] != self.dim:
            sides = ("length", "height, width", "depth, height, width")[self.dimensions - 1]
            raise ValueError(f"x must be (b, dim = {self.dim}, {sides}), got shape {tuple(x.shape)}")
        grid = tuple(x.shape[2:])
        if torch.jit.is_tracing():
            grid, x = static_shape(x)[2:], fix_sides(x, 2)
        valid = None
        if mask is not None:
            shape, got = (x.shape[0], *grid), tuple(mask.shape)
            if mask.dtype != torch.bool or got not in (shape, (1, *grid)):
                raise ValueError(f"mask must be {shape} and bool, True at valid positions, got {got} and {mask.dtype}")
            mask = fix_sides(mask, 1)
            x = x.masked_fill(~mask.unsqueeze(1), 0)
            valid = mask.expand(x.shape[0], *grid).flatten(1)
        queries, keys, values = self._project(x, None, valid)
        tables, embeddings = self.tables(), None
        if not tables and self.embedding is not None:
            if isinstance(self.embedding, DenseEmbedding) and grid[1:] and math.prod(grid) != self.embedding.positions:
                expected = f"a map of {self.embedding.positions} positions, those of its DenseEmbedding"
                raise ValueError(f"x must be {expected}, got {grid}")
            embeddings = self.embedding(math.prod(grid), math.prod(grid))
        mask = None if valid is None else valid.unsqueeze(1)  # (b, 1, m)
        return LambdaInputs(queries, keys, values, grid, embeddings, tables, mask)

    def finish(self, output: Tensor, inputs: LambdaInputs) -> Tensor:
        """Return the interaction (b, h, n, v) as maps (b, h v, S_1..S_D), and pooled."""
        if output.stride(2) == 1 != output.stride(3):  # contiguous maps
            b, h, _, v = output.shape
            output = output.transpose(2, 3).reshape(b, h * v, *inputs.grid)
        else:  # maps in channels_last, (b, n, h v); the gradient is converted to it once
            rows = output.transpose(1, 2).flatten(2)
            output = contiguous_gradient(rows, rows.shape).transpose(1, 2).unflatten(2, inputs.grid)
        if self.pool is None:
            return output
        pooled = self.pool(output)
        if inputs.mask is None:
            return pooled
        mask = inputs.mask[:, 0].unflatten(1, inputs.grid)
        strides = (slice(None, None, self.stride),) * self.dimensions
        # contiguous, so that torch.compile does not specialize on even and odd sizes
        strided_mask = mask[(slice(None), *strides)].contiguous().unsqueeze(1)
        if not counts_padding(self.pool):  # the average of the valid positions
            valid_fraction = self.pool(mask.unsqueeze(1).to(output.dtype))
            pooled = pooled / valid_fraction.clamp(min=torch.finfo(output.dtype).tiny)
        return pooled.masked_fill(~strided_mask, 0)


class LambdaLayer1d(GridLambdaLayer):
    """Lambda layer on sequences (b, dim, length).

    The arguments are those of LambdaLayer2d; scope and grid have one side.

    With causal=True, outputs do not depend on later positions, up to rounding relative to the largest value (see
    docs/engine.md, Limits of transforms), and can be decoded step by step, see `lambdanets.start_decoding`. In
    training, the statistics of batch norm still include later positions, so use batch_norm=False for language models.
    LambdaLayer is the layer for channels-last tokens.
    """

    dimensions = 1


class LambdaLayer2d(GridLambdaLayer):
    """Lambda layer on images (Bello, ICLR 2021, Eqs. 1 and 2), a replacement for a 3x3 convolution.

    It captures long-range interactions by content and by relative position:
    y[n,h] = (sum_m kbar[m] v[m]^T + sum_m e[n,m] v[m]^T)^T q[n,h]. The outputs of the h heads are concatenated.
    Queries q, keys and values v are 1x1 projections without bias, and queries and values pass through a batch norm.
    kbar is the softmax of the keys over all positions m. e[n,m] = R[m - n] are relative embeddings.

    Input: (b, dim, H, W); H and W may differ between calls.
    Output: (b, dim_out, ceil(H / stride), ceil(W / stride)), in the memory format of the input.
    `forward` also accepts a padding mask.
    Supports float64, float32, bfloat16, float16 and autocast; sums are accumulated in float32 or float64.

    Args:
        dim: number of input channels, d.
        dim_out: number of output channels, divisible by heads; default dim. The value depth v is dim_out / heads.
        query_depth: k, the depth of queries and keys; default 16.
        heads: h, the number of queries per position that share one lambda; default 4.
        intra_depth: u, an extra dimension of keys, values and embeddings that the lambdas sum over (Sec. C.4);
            default 1.
        scope: number of embeddings per side of the neighborhood that the position term covers, as an odd integer or a
            tuple (height, width) of odd integers; default 23. With a dilation d it covers d (scope - 1) + 1 positions
            per side. None for a global scope, which requires `grid`.
        stride: stride of the average pooling after the layer, as in Sec. F.2; default 1, no pooling. The window is 3x3
            for stride 2.
        dilation: distance between adjacent positions of the scope; default 1.
        content: use the content term; default True. LambdaLayer3d accepts "slices", one content lambda for each slice
            along the first axis.
        position: use the position term; default True.
        normalize_keys: normalization of the keys over the positions (Table 11): "softmax", the default, "l2" or None.
        normalize_queries: "softmax" over the query depth, or None, the default.
        batch_norm: normalize queries and values by batch norm; default True.
        embedding: replaces the layer's own embedding table and scope; default None. Either a RelativeEmbedding, which
            several layers may share; or a sequence of them, whose terms are summed; or any module that returns
            E (n, m, k[, u]) when called with n and m, such as a DenseEmbedding.
        grid: only with scope=None: the largest (height, width) that the embedding table covers. On larger maps, pairs
            of positions further apart have no position interaction; `layer.embedding.resize` interpolates the table.
        multi_head: use separate keys, values, embeddings and lambdas for each head (Sec. C.3); default False.
        causal: use only context positions up to and including the query, in row-major order; default False. Requires
            stride 1. In training, the statistics of batch norm still include all positions.
        position_bias: add a learned vector (k,) to every position lambda, for all value channels, as the bias of a
            Conv3d does in other packages; (h, k) with multi_head. Initialized to 0.
        pool: an nn.AvgPool2d that replaces the 3x3 average pooling, with output sides ceil(S / stride).
        algorithm: algorithm of the position term, see `lambdanets.position_interaction`; default "auto".

    Parameters: d h k + d k u + d v u + r r k u + 2 h k + 2 v u, with r the scope. With multi_head, the terms with u are
    multiplied by h.
    Cost per image: projections plus n k v u (1 + min(n, r r)) + 2 h n k v multiply-adds, with n = H W.
    Initialization (Sec. F.2): normal with std 1/sqrt(d) for keys and values, 1/sqrt(k d) for queries, 1 for embeddings.
    In residual networks, zero-initialize the last norm of each block, and use at most one lambda layer per block
    (Appendix B).
    Raises ValueError naming the invalid argument.
    """

    dimensions = 2


class LambdaLayer3d(GridLambdaLayer):
    """Lambda layer on volumes or video (b, dim, depth, height, width).

    The arguments are those of LambdaLayer2d; scope and grid have three sides. The layer of LambdaUNet (Ou et al.,
    MICCAI 2021), with embeddings within a slice and embeddings between slices, is:

        embedding=[RelativeEmbedding((1, 7, 7), 16), RelativeEmbedding((3, 1, 1), 16)], content="slices"
    """

    dimensions = 3

    def pair_terms(self, inputs: LambdaInputs) -> Tensor:
        queries, keys, values, (slices, *_), embeddings, _, mask = inputs
        if not self.content_by_slice or keys is None:
            return super().pair_terms(inputs)
        axis = 2 if self.multi_head else 1

        def split(x: Tensor, axis: int) -> Tensor:
            """Move the slices of the positions along an axis into the batch, (b slices, .., positions, ..)."""
            return x.unflatten(axis, (slices, -1)).movedim(axis, 1).flatten(0, 1)

        by_slice = inputs._replace(
            queries=split(queries, 2),
            keys=split(keys, axis),
            values=split(values, axis),
            embeddings=None,
            mask=None if mask is None else split(mask, 2),
        )
        content = super().pair_terms(by_slice).unflatten(0, (-1, slices)).movedim(1, 2).flatten(2, 3)
        return content if embeddings is None else content + super().pair_terms(inputs._replace(keys=None))
