"""Sums over neighborhoods of r x r positions, with weights from pairs of positions or from the whole neighborhood."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lambdanets.ops.precision import accumulation_dtype
from lambdanets_lab.mixers.mixer import Mixer, conv1x1


def neighbors(maps: Tensor, scope: int, padding: str) -> Tensor:
    """Return the r x r neighborhood of each position, (b, c, r r, n), of maps (b, c, H, W).

    padding: a mode of F.pad: "constant" for zeros, or "replicate", which unlike reflection works for maps of any size.
    """
    padded = F.pad(maps, (scope // 2,) * 4, padding)
    return F.unfold(padded, scope).unflatten(1, (padded.shape[1], scope * scope))


def weighted_sum(weights: Tensor, maps: Tensor, scope: int, padding: str) -> Tensor:
    """Return the weighted sum over the neighborhood of each position, (b, g c, H, W), with g groups of channels.

    y[g,c,n] = sum_j weights[g,j,n] maps[g,c,n + j], for weights (b, g, r r, n) and maps (b, g c, H, W), padded as in
    `neighbors`. It accumulates shifted maps, because unfolding all channels would need r r times their memory. Sums
    are in float32 or wider.
    """
    dtype, compute_dtype = torch.promote_types(weights.dtype, maps.dtype), accumulation_dtype(maps.dtype)
    height, width = maps.shape[2:]
    padded = F.pad(maps, (scope // 2,) * 4, padding).to(compute_dtype)
    weights = weights.to(compute_dtype)
    groups = padded.unflatten(1, (weights.shape[1], -1))
    weights = weights.unflatten(3, (height, width)).unsqueeze(2)  # (b, g, 1, r r, H, W)
    total = weights.new_zeros(())
    for row in range(scope):
        for column in range(scope):
            shifted = groups[..., row : row + height, column : column + width]
            total = total + weights.select(3, row * scope + column) * shifted
    return total.flatten(1, 2).to(dtype)


class LocalRelation(Mixer):
    """Local relation layer (Hu et al. 2019, Sec. 3) over neighborhoods of r x r positions.

    For each group of `share` channels: y[n] = sum_m softmax_m(-(q[n] - k[m])^2 + P[m - n]) x[m] over the positions m at
    most r // 2 rows and columns away. q and k are 1x1 projections to one scalar per group. The squared difference is
    one of the three similarities of the original paper. P, the geometry prior, is an MLP of the offset (y, x) / (r //
    2), with two linear layers, a ReLU and one hidden channel per group.

    Args:
        scope: r, the odd side of the neighborhood, in positions; default 7.
        share: number of channels that share weights, m in the original paper; must divide dim_out; default 8.

    Parameters: 2 dim g + 3 g + g^2 + g, with g = dim_out / share groups. If dim_out differs from dim, x is first
    projected by dim dim_out more parameters.
    Cost per image: 2 n dim g + n r r (g + dim_out) multiply-adds.
    Omitted: the wider blocks of the original network, and its local relation layer in the stem.
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, *, stride: int = 1, scope: int = 7, share: int = 8
    ) -> None:
        super().__init__(dim, dim_out, stride, share=share, scope=scope)
        groups = self.dim_out // share
        self.projection = conv1x1(dim, 2 * groups)
        keeps_dim = self.dim_out == dim
        self.value_projection = nn.Identity() if keeps_dim else conv1x1(dim, self.dim_out)
        self.geometry_prior = nn.Sequential(nn.Linear(2, groups), nn.ReLU(), nn.Linear(groups, groups))

    def mix(self, x: Tensor) -> Tensor:
        queries, keys = self.projection(x).chunk(2, dim=1)
        radius = self.scope // 2
        offsets = torch.arange(-radius, radius + 1, device=x.device).to(self.projection.weight.dtype) / max(radius, 1)
        prior = self.geometry_prior(torch.cartesian_prod(offsets, offsets)).mT.unsqueeze(-1)  # (g, r r, 1)
        similarity = -(queries.flatten(2).unsqueeze(2) - neighbors(keys, self.scope, "constant")).square()
        on_map = neighbors(torch.ones_like(x[:1, :1]), self.scope, "constant") > 0
        weights = (similarity + prior).masked_fill(~on_map, -torch.inf).softmax(dim=2)
        return weighted_sum(weights, self.value_projection(x), self.scope, "constant")


class PairwiseAttention(Mixer):
    """Pairwise self-attention (Zhao et al. 2020, SAN, Sec. 3.1) over neighborhoods of r x r positions.

    y[n] = sum_m softmax_m(gamma([q[n] - k[m], p[n] - p[m]])) * v[m], where each output of gamma weights `share`
    channels. q and k have t = dim_out / 4 channels, v has dim_out. p is a linear map of the coordinates, from -1 to 1
    on each axis, to two channels. gamma is batch norm, ReLU, linear to t, batch norm, ReLU, linear to dim_out / share.

    Args:
        scope: r, the odd side of the neighborhood, in positions; default 7.
        share: number of channels that share a weight; must divide dim_out; default 8.

    Parameters: dim (2 t + dim_out) + 4 + (t + 2) t + 2 (t + 2) + 2 t + (t + 1) dim_out / share.
    Cost per image: n dim (2 t + dim_out) + n r r (t (t + 2 + dim_out / share) + dim_out) multiply-adds; memory
    n r r (t + 2), and several times as much in training.
    Omitted: the biases of q, k and p, which differences and norms cancel, and of v. Padding replicates the border; the
    original reflects, which requires sides above r // 2.
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, *, stride: int = 1, scope: int = 7, share: int = 8
    ) -> None:
        super().__init__(dim, dim_out, stride, share=share, scope=scope)
        self.depth = depth = max(self.dim_out // 4, 1)
        self.projection = conv1x1(dim, 2 * depth + self.dim_out)
        self.position = nn.Linear(2, 2, bias=False)
        self.weighing = _gamma(depth + 2, depth, self.dim_out // share)

    def mix(self, x: Tensor) -> Tensor:
        queries, keys, values = self.projection(x).split([self.depth, self.depth, self.dim_out], dim=1)
        positions = self._positions(x).to(queries.dtype).expand(x.shape[0], -1, -1, -1)
        queries, keys = torch.cat([queries, positions], dim=1), torch.cat([keys, positions], dim=1)
        relation = queries.flatten(2).unsqueeze(2) - neighbors(keys, self.scope, "replicate")
        weights = self.weighing(relation).softmax(dim=2)
        return weighted_sum(weights, values, self.scope, "replicate")

    def _positions(self, x: Tensor) -> Tensor:
        """Return p (1, 2, H, W)."""
        axes = [torch.linspace(-1, 1, side, device=x.device, dtype=self.position.weight.dtype) for side in x.shape[2:]]
        return self.position(torch.cartesian_prod(*axes)).mT.unflatten(1, x.shape[2:]).unsqueeze(0)


class PatchwiseAttention(Mixer):
    """Patchwise self-attention (Zhao et al. 2020, SAN, Sec. 3.2) over neighborhoods of r x r positions.

    y[n] = sum_j gamma([q[n], k[n + 1], .., k[n + r r]])[j] * v[n + j], where j counts the r r neighbors and each output
    of gamma weights `share` channels. q and k have t = dim_out / 4 channels, v has dim_out. gamma is batch norm, ReLU,
    linear to g = dim_out / share, batch norm, ReLU, linear to r r g; there is no softmax.

    The arguments are those of `PairwiseAttention`.

    Parameters: dim (2 t + dim_out) + t (r r + 1) (g + 2) + 2 g + (g + 1) r r g.
    Cost per image: n dim (2 t + dim_out) + n r r ((t + g) g + dim_out) multiply-adds; memory n r r t.
    Omitted: the biases of q, k and v. Padding replicates the border, as in `PairwiseAttention`.
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, *, stride: int = 1, scope: int = 7, share: int = 8
    ) -> None:
        super().__init__(dim, dim_out, stride, share=share, scope=scope)
        depth, groups = max(self.dim_out // 4, 1), self.dim_out // share
        self.depth, self.groups = depth, groups
        self.projection = conv1x1(dim, 2 * depth + self.dim_out)
        self.weighing = _gamma(depth * (scope * scope + 1), groups, scope * scope * groups)

    def mix(self, x: Tensor) -> Tensor:
        queries, keys, values = self.projection(x).split([self.depth, self.depth, self.dim_out], dim=1)
        patches = neighbors(keys, self.scope, "replicate").flatten(1, 2)
        features = torch.cat([queries.flatten(2), patches], dim=1).unflatten(2, x.shape[2:])
        weights = self.weighing(features).flatten(2).unflatten(1, (self.groups, -1))
        return weighted_sum(weights, values, self.scope, "replicate")


def _gamma(channels: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return the function that maps features of a pair or of a neighborhood to weights (Zhao et al. 2020)."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, hidden, 1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.ReLU(),
        nn.Conv2d(hidden, outputs, 1),
    )
