"""Linear attention with random features (FAVOR+)."""

import math

import torch
from torch import Tensor, nn

from lambdanets.ops.checks import check_sizes
from lambdanets.ops.precision import accumulation_dtype, without_autocast
from lambdanets_lab.mixers.linear_attention import linear_attention
from lambdanets_lab.mixers.mixer import Mixer, check_divides, conv1x1, join_heads, split_heads

_RELU_FLOOR = 1e-3  # keeps denominators positive; the value is from the authors' code


class Performer(Mixer):
    """Bidirectional attention in linear time, with random features (Choromanski et al. 2020, Secs. 2.2 to 2.4).

    y[n,h] = sum_m (phi(q[n,h]) . phi(k[m,h])) v[m,h] / sum_m phi(q[n,h]) . phi(k[m,h]). phi has r features, one for
    each row w of a random matrix W (r, c), with c = dim_out / h. Each block of c rows is orthogonal, and the norms of
    the rows have the distribution of the norms of Gaussian vectors. Subclasses define phi. There is no position term.

    W is sampled once, shared by the heads, and a buffer in the state dict; `redraw_features` samples it again. Features
    and sums are computed in float32 or float64.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d`; default 1.
        heads: h, must divide dim_out; default 8.
        random_features: r, the number of random features; default None for c log c, rounded up (Theorem 4 of the
            original paper), at least 1.

    Parameters: 3 dim dim_out. Cost per image: 3 n dim dim_out + n r (4 dim_out + 2 h) multiply-adds.
    Omitted: causal attention, the output projection, and a schedule for sampling the features again.
    Raises ValueError naming the invalid argument.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim_out, stride)
        check_divides("heads", heads, self.dim_out)
        depth = self.dim_out // heads
        if random_features is None:
            random_features = max(math.ceil(depth * math.log(depth)), 1)
        check_sizes(random_features=random_features)
        self.heads = heads
        self.projection = conv1x1(dim, 3 * self.dim_out, device, dtype)
        self.register_buffer("weights", torch.empty(random_features, depth, device=device, dtype=dtype))
        self.redraw_features()

    def redraw_features(self) -> None:
        """Sample W again, from the default CPU generator. A model trained with the old W may lose accuracy."""
        self.weights.copy_(orthogonal_rows(*self.weights.shape))

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
        return linear_attention(query_features, key_features, values, _identity, multi_head=True)

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi of queries and keys, (b, h, n, r), up to a factor per query, which cancels in the attention."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}, random_features={len(self.weights)}"


class SoftmaxPerformer(Performer):
    """`Performer` with positive features that approximate softmax attention.

    phi(x) = exp(w . x' - |x'|^2 / 2) / sqrt(r), with x' = x c^(-1/4). The expectation of phi(q) . phi(k) is exp(q . k /
    sqrt(c)), so with more features the output converges to that of softmax attention (Lemma 1 of the original paper).

    For numerical stability, each key feature is divided by its maximum over the positions and the query feature is
    multiplied by it; the features of each query are then divided by their maximum. No exponential overflows, and no
    denominator is below 1. The authors' code uses one maximum for all keys and adds 1e-4 to each feature, which is a
    bias that more features do not reduce.
    """

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        queries, keys = self._exponents(queries), self._exponents(keys)
        maxima = keys.amax(dim=-2, keepdim=True)
        queries = queries + maxima
        return (queries - queries.amax(dim=-1, keepdim=True)).exp(), (keys - maxima).exp()

    def _exponents(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return x @ self.weights.to(x.dtype).mT - x.square().sum(dim=-1, keepdim=True) / 2


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


def _identity(features: Tensor) -> Tensor:
    return features
