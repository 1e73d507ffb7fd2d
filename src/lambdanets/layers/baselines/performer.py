"""Linear attention by random features (FAVOR+)."""

import math

import torch
from torch import Tensor, nn

from lambdanets.layers.baselines.mixer import Mixer, check_divides, join_heads, project, split_heads
from lambdanets.ops.attention_forms import linear_attention
from lambdanets.ops.checks import check_sizes
from lambdanets.ops.precision import wide, without_autocast

_RELU_FLOOR = 1e-3  # so that no divisor is 0: the constant of the authors' code


class Performer(Mixer):
    """Bidirectional attention by random features (Choromanski et al. 2020, Secs. 2.2 to 2.4), in linear time.

    y[n,h] = sum_m (phi(q[n,h]) . phi(k[m,h])) v[m,h] / sum_m phi(q[n,h]) . phi(k[m,h]), phi of r features made of the
    rows w of a matrix W (r, c), c = dim_out / h, which are orthogonal within each c of them and as long as Gaussian
    vectors. Subclasses say what phi is. Positions do not count.

    W is a buffer, shared by the heads, saved with the weights and drawn once; `redraw_features` draws another. Features
    and sums are computed in float32 or wider.

    Input (b, dim, H, W), output (b, dim_out, ceil(H / stride), ceil(W / stride)), any H and W.

    Args:
        heads: h, must divide dim_out. random_features: r; None for c log c, rounded up (their Theorem 4), at least 1.
        stride: average pooling after the layer, as in `LambdaLayer2d`.

    Parameters: 3 dim dim_out. Cost per image: 3 n dim dim_out + n r (4 dim_out + 2 h) multiply-adds.
    Left out: causal attention; an output projection, as in all layers here; redrawing by a schedule.
    Raises ValueError naming the argument that does not fit.
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
        self.projection = project(dim, 3 * self.dim_out, device, dtype)
        self.register_buffer("weights", torch.empty(random_features, depth, device=device, dtype=dtype))
        self.redraw_features()

    def redraw_features(self) -> None:
        """Draw W again, from the default generator of the processor. What was learnt with the old one may suffer."""
        self.weights.copy_(orthogonal_rows(*self.weights.shape))

    def mix(self, x: Tensor) -> Tensor:
        projected = self.projection(x)
        parts = (split_heads(part, self.heads) for part in projected.chunk(3, dim=1))
        with without_autocast(x.device):
            queries, keys, values = (part.to(wide(part.dtype)) for part in parts)
            output = self.attend(queries, keys, values)
        return join_heads(output, *x.shape[2:]).to(projected.dtype)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(b, h, n, c) each, to (b, h, n, c)."""
        asked, offered = self.features(queries, keys)
        return linear_attention(asked, offered, values, _as_given, multi_head=True)

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """phi of queries and keys, (b, h, n, c) to (b, h, n, r), up to a factor for each query: division cancels it."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}, random_features={len(self.weights)}"


class SoftmaxPerformer(Performer):
    """The `Performer` whose features estimate softmax attention: phi(x) = exp(w . x' - |x'|^2 / 2) / sqrt(r).

    x' = x c^(-1/4). The features are positive, and phi(q) . phi(k) has the mean exp(q . k / sqrt(c)), so that more of
    them come closer to softmax attention (Lemma 1).

    Each feature of the keys is divided by its largest over the positions, by which the queries' is multiplied; what the
    queries then have is divided by the largest of each query. No exponential overflows and no divisor is below 1. The
    authors' code takes one largest for all keys and adds 1e-4 to each feature, which more features do not average out.
    """

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        asked, offered = self._exponents(queries), self._exponents(keys)
        largest = offered.amax(dim=-2, keepdim=True)
        asked = asked + largest
        return (asked - asked.amax(dim=-1, keepdim=True)).exp(), (offered - largest).exp()

    def _exponents(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return x @ self.weights.to(x.dtype).mT - x.square().sum(dim=-1, keepdim=True) / 2


class ReluPerformer(Performer):
    """The `Performer` of generalized attention, which estimates no softmax: phi(x) = relu(w . x / sqrt(r)) + 0.001."""

    def features(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.weights.to(queries.dtype).mT * len(self.weights) ** -0.5
        return (queries @ weights).relu() + _RELU_FLOOR, (keys @ weights).relu() + _RELU_FLOOR


def orthogonal_rows(count: int, depth: int) -> Tensor:
    """(count, depth) float32: random directions, orthogonal within each `depth` of them, long as Gaussian vectors."""
    blocks = [
        nn.init.orthogonal_(torch.empty(depth, depth, device="cpu", dtype=torch.float32))
        for _ in range(-(-count // depth))
    ]
    norms = torch.randn(count, depth, device="cpu", dtype=torch.float32).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:count] * norms


def _as_given(features: Tensor) -> Tensor:
    return features
