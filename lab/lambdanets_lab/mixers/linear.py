"""Linear attention: content lambdas with softmax or with random features (Appendix D.3)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.ops import lambda_interaction
from lambdanets.ops.checks import check_sizes
from lambdanets.ops.precision import accumulation_dtype, without_autocast
from lambdanets_lab.mixers.mixer import Mixer, conv1x1, join_heads, split_heads


class EfficientAttention(Mixer):
    """Efficient attention (Shen et al. 2018, Sec. 3.2): y[n,h] = softmax_k(q[n,h])^T (softmax_m(k[:,h])^T v[:,h]).

    Queries are normalized over their channels, keys over all positions m. Heads are concatenated and projected by W_o.
    There is no position term. The implementation is a multi-head lambda with only the content term and normalized
    queries.

    Args:
        heads: h, must divide dim_out; default 8. Each head has dim_out / h channels of queries, keys and values.

    Parameters: 3 dim dim_out + dim_out^2. Cost per image: n (parameters + 2 dim_out^2 / heads) multiply-adds.
    Omitted: biases, and the shortcut, which belongs to the residual block.
    """

    def __init__(self, dim: int, dim_out: int | None = None, *, stride: int = 1, heads: int = 8) -> None:
        super().__init__(dim, dim_out, stride, heads=heads)
        self.projection = conv1x1(dim, 3 * self.dim_out)
        self.output_projection = conv1x1(self.dim_out, self.dim_out)

    def mix(self, x: Tensor) -> Tensor:
        queries, keys, values = (split_heads(part, self.heads) for part in self.projection(x).chunk(3, dim=1))
        output = lambda_interaction(queries.softmax(-1).to(keys.dtype), keys, values, None, multi_head=True)
        return self.output_projection(join_heads(output, *x.shape[2:]))


class DoubleAttention(Mixer):
    """Double attention (Chen et al. 2018, A2-Nets, Sec. 3): Z = (A softmax_n(B)^T) softmax_c(V), y = W_o Z.

    A, B and V are 1x1 projections of x to `depth` channels each. The first factor gathers second-order features over
    all positions n. The second factor distributes them, weighted by a softmax over the channels c of V. The
    implementation is a lambda with only the content term and normalized queries.

    Args:
        depth: number of channels of A, B and V; default None for dim_out / 2, which reproduces Table 3 of the
            LambdaNetworks paper most closely.

    Parameters: 3 dim depth + depth dim_out. Cost per image: n (parameters + 2 depth^2) multiply-adds.
    Omitted: biases, and the shortcut and norm, which belong to the residual block. The original inserts the layer
    between blocks of convolutions; here it replaces the 3x3 convolutions.
    """

    def __init__(self, dim: int, dim_out: int | None = None, *, stride: int = 1, depth: int | None = None) -> None:
        super().__init__(dim, dim_out, stride)
        depth = max(self.dim_out // 2, 1) if depth is None else depth
        check_sizes(depth=depth)
        self.projection = conv1x1(dim, 3 * depth)
        self.output_projection = conv1x1(depth, self.dim_out)

    def mix(self, x: Tensor) -> Tensor:
        features, keys, queries = (split_heads(part, 1) for part in self.projection(x).chunk(3, dim=1))
        output = lambda_interaction(queries.softmax(-1).to(keys.dtype), keys.squeeze(1), features.squeeze(1), None)
        return self.output_projection(join_heads(output, *x.shape[2:]))


_RELU_FLOOR = 1e-3  # keeps denominators positive; the value is from the authors' code


class Performer(Mixer):
    """Bidirectional attention in linear time, with random features (Choromanski et al. 2020, Secs. 2.2 to 2.4).

    y[n,h] = sum_m (phi(q[n,h]) . phi(k[m,h])) v[m,h] / sum_m phi(q[n,h]) . phi(k[m,h]). phi has r features, one for
    each row w of a random matrix W (r, c), with c = dim_out / h. Each block of c rows is orthogonal, and the norms of
    the rows have the distribution of the norms of Gaussian vectors. Subclasses define phi. There is no position term.

    W is sampled once, from the default CPU generator, shared by the heads, and a buffer in the state dict. Features and
    sums are computed in float32 or float64.

    Args:
        heads: h, must divide dim_out; default 8.
        random_features: r, the number of random features; default None for c log c, rounded up (Theorem 4 of the
            original paper), at least 1.

    Parameters: 3 dim dim_out. Cost per image: 3 n dim dim_out + n r (4 dim_out + 2 h) multiply-adds.
    Omitted: causal attention, the output projection, and a schedule for sampling the features again.
    """

    weights: Tensor

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        heads: int = 8,
        random_features: int | None = None,
    ) -> None:
        super().__init__(dim, dim_out, stride, heads=heads)
        depth = self.dim_out // heads
        if random_features is None:
            random_features = max(math.ceil(depth * math.log(depth)), 1)
        check_sizes(random_features=random_features)
        self.projection = conv1x1(dim, 3 * self.dim_out)
        self.register_buffer("weights", torch.empty(random_features, depth))
        self.weights.copy_(orthogonal_rows(random_features, depth))

    def mix(self, x: Tensor) -> Tensor:
        projected = self.projection(x)
        rows = (split_heads(part, self.heads) for part in projected.chunk(3, dim=1))
        with without_autocast(x.device):
            queries, keys, values = (part.to(accumulation_dtype(part.dtype)) for part in rows)
            output = self.attend(queries, keys, values)
        return join_heads(output, *x.shape[2:]).to(projected.dtype)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the attention output (b, h, n, c) for queries, keys and values (b, h, n, c)."""
        query_features, key_features = self.features(queries, keys)
        values_and_ones = F.pad(values, (0, 1), value=1.0)  # the denominator is the same lambda of ones
        output = lambda_interaction(
            query_features, key_features, values_and_ones, None, normalize_keys=None, multi_head=True
        )
        return output[..., :-1] / output[..., -1:]

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi of queries and keys, (b, h, n, r), up to a factor per query, which cancels in the attention."""
        raise NotImplementedError


class SoftmaxPerformer(Performer):
    """`Performer` with positive features that approximate softmax attention.

    phi(x) = exp(w . x' - |x'|^2 / 2) / sqrt(r), with x' = x c^(-1/4). The expectation of phi(q) . phi(k) is exp(q . k /
    sqrt(c)), so with more features the output converges to that of softmax attention (Lemma 1 of the original paper).

    For numerical stability, each key feature is divided by its maximum over the positions and the query feature is
    multiplied by it; the features of each query are then divided by their maximum. No exponential overflows, and no
    denominator is below 1. These factors and exp(-|q'|^2 / 2) cancel in the attention, with their gradients. The
    authors' code uses one maximum for all keys and adds 1e-4 to each feature, which is a bias that more features do not
    reduce.
    """

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        scale = queries.shape[-1] ** -0.25
        weights = scale * self.weights.to(queries.dtype).mT
        queries, keys = queries @ weights, keys @ weights - scale**2 / 2 * keys.square().sum(dim=-1, keepdim=True)
        maxima = keys.detach().amax(dim=-2, keepdim=True)
        queries = queries + maxima
        return (queries - queries.detach().amax(dim=-1, keepdim=True)).exp(), (keys - maxima).exp()


class ReluPerformer(Performer):
    """`Performer` with phi(x) = relu(w . x / sqrt(r)) + 0.001, which does not approximate softmax attention."""

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.weights.to(queries.dtype).mT * len(self.weights) ** -0.5
        return (queries @ weights).relu() + _RELU_FLOOR, (keys @ weights).relu() + _RELU_FLOOR


def orthogonal_rows(num_rows: int, depth: int) -> Tensor:
    """Return random rows, orthogonal in blocks of `depth` rows, with the norms of Gaussian vectors."""
    blocks = [
        nn.init.orthogonal_(torch.empty(depth, depth, device="cpu", dtype=torch.float32))
        for _ in range(-(-num_rows // depth))
    ]
    norms = torch.randn(num_rows, depth, device="cpu", dtype=torch.float32).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:num_rows] * norms
