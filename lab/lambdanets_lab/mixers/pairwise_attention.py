"""Self-attention with one weight per channel group, computed from pairs of positions."""

import torch
from torch import Tensor, nn

from lambdanets_lab.mixers.mixer import Mixer, check_divides, conv1x1
from lambdanets_lab.mixers.neighborhoods import check_scope, neighbors, pad_border, weighted_sum


class PairwiseAttention(Mixer):
    """Pairwise self-attention (Zhao et al. 2020, SAN, Sec. 3.1) over neighborhoods of r x r positions.

    y[n] = sum_m softmax_m(gamma([q[n] - k[m], p[n] - p[m]])) * v[m], where each output of gamma weights `share`
    channels. q and k have t = dim_out / 4 channels, v has dim_out. p is a linear map of the coordinates, from -1 to 1
    on each axis, to two channels. gamma is batch norm, ReLU, linear to t, batch norm, ReLU, linear to dim_out / share.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d`; default 1.
        scope: r, the odd side of the neighborhood, in positions; default 7.
        share: number of channels that share a weight; must divide dim_out; default 8.

    Parameters: dim (2 t + dim_out) + 4 + (t + 2) t + 2 (t + 2) + 2 t + (t + 1) dim_out / share.
    Cost per image: n dim (2 t + dim_out) + n r r (t (t + 2 + dim_out / share) + dim_out) multiply-adds; memory
    n r r (t + 2), and several times as much in training.
    Omitted: the biases of q, k and p, which differences and norms cancel, and of v. Padding replicates the border; the
    original reflects, which requires sides above r // 2.
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
        depth = max(self.dim_out // 4, 1)
        self.scope, self.depth = scope, depth
        self.projection = conv1x1(dim, 2 * depth + self.dim_out, device, dtype)
        self.position = nn.Linear(2, 2, bias=False, device=device, dtype=dtype)
        self.weighing = nn.Sequential(
            nn.BatchNorm2d(depth + 2, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Conv2d(depth + 2, depth, 1, bias=False, device=device, dtype=dtype),
            nn.BatchNorm2d(depth, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Conv2d(depth, self.dim_out // share, 1, device=device, dtype=dtype),
        )

    def mix(self, x: Tensor) -> Tensor:
        queries, keys, values = self.projection(x).split([self.depth, self.depth, self.dim_out], dim=1)
        positions = self._positions(x).to(queries.dtype).expand(x.shape[0], -1, -1, -1)
        queries, keys = torch.cat([queries, positions], dim=1), torch.cat([keys, positions], dim=1)
        relation = queries.flatten(2).unsqueeze(2) - neighbors(pad_border(keys, self.scope), self.scope)
        weights = self.weighing(relation).softmax(dim=2)
        return weighted_sum(weights, pad_border(values, self.scope), self.scope)

    def _positions(self, x: Tensor) -> Tensor:
        """Return p (1, 2, H, W)."""
        axes = [torch.linspace(-1, 1, side, device=x.device, dtype=self.position.weight.dtype) for side in x.shape[2:]]
        return self.position(torch.cartesian_prod(*axes)).mT.unflatten(1, x.shape[2:]).unsqueeze(0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scope={self.scope}"
