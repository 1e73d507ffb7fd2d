"""Local aggregation, weighted by the similarity of positions and a learned prior of their offset."""

import torch
from torch import Tensor, nn

from lambdanets_lab.mixers.mixer import Mixer, check_divides, conv1x1
from lambdanets_lab.mixers.neighborhoods import check_scope, neighbors, pad_zeros, weighted_sum


class LocalRelation(Mixer):
    """Local relation layer (Hu et al. 2019, Sec. 3) over neighborhoods of r x r positions.

    For each group of `share` channels: y[n] = sum_m softmax_m(-(q[n] - k[m])^2 + P[m - n]) x[m] over the positions m at
    most r // 2 rows and columns away. q and k are 1x1 projections to one scalar per group. The squared difference is
    one of the three similarities of the original paper. P, the geometry prior, is an MLP of the offset (y, x) / (r //
    2), with two linear layers, a ReLU and one hidden channel per group.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d`; default 1.
        scope: r, the odd side of the neighborhood, in positions; default 7.
        share: number of channels that share weights, m in the original paper; must divide dim_out; default 8.

    Parameters: 2 dim g + 3 g + g^2 + g, with g = dim_out / share groups. If dim_out differs from dim, x is first
    projected by dim dim_out more parameters.
    Cost per image: 2 n dim g + n r r (g + dim_out) multiply-adds.
    Omitted: the wider blocks of the original network, and its local relation layer in the stem.
    Raises ValueError naming the invalid argument.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        scope: int = 7,
        share: int = 8,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim_out, stride)
        check_scope(scope)
        check_divides("share", share, self.dim_out)
        groups = self.dim_out // share
        self.scope = scope
        self.projection = conv1x1(dim, 2 * groups, device, dtype)
        keeps_dim = self.dim_out == dim
        self.value_projection = nn.Identity() if keeps_dim else conv1x1(dim, self.dim_out, device, dtype)
        self.geometry_prior = nn.Sequential(
            nn.Linear(2, groups, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Linear(groups, groups, device=device, dtype=dtype),
        )

    def mix(self, x: Tensor) -> Tensor:
        queries, keys = self.projection(x).chunk(2, dim=1)
        radius = self.scope // 2
        offsets = torch.arange(-radius, radius + 1, device=x.device).to(self.projection.weight.dtype) / max(radius, 1)
        prior = self.geometry_prior(torch.cartesian_prod(offsets, offsets)).mT.unsqueeze(-1)  # (g, r r, 1)
        similarity = -(queries.flatten(2).unsqueeze(2) - neighbors(pad_zeros(keys, self.scope), self.scope)).square()
        on_map = neighbors(pad_zeros(torch.ones_like(x[:1, :1]), self.scope), self.scope) > 0
        weights = (similarity + prior).masked_fill(~on_map, -torch.inf).softmax(dim=2)
        return weighted_sum(weights, pad_zeros(self.value_projection(x), self.scope), self.scope)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scope={self.scope}"
