"""Self-attention with one weight per channel group and neighbor, computed from the whole neighborhood."""

import torch
from torch import Tensor, nn

from lambdanets_lab.mixers.mixer import Mixer, check_divides, conv1x1
from lambdanets_lab.mixers.neighborhoods import check_scope, neighbors, pad_border, weighted_sum


class PatchwiseAttention(Mixer):
    """Patchwise self-attention (Zhao et al. 2020, SAN, Sec. 3.2) over neighborhoods of r x r positions.

    y[n] = sum_j gamma([q[n], k[n + 1], .., k[n + r r]])[j] * v[n + j], where j counts the r r neighbors and each output
    of gamma weights `share` channels. q and k have t = dim_out / 4 channels, v has dim_out. gamma is batch norm, ReLU,
    linear to g = dim_out / share, batch norm, ReLU, linear to r r g; there is no softmax.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    The arguments are those of `PairwiseAttention`.

    Parameters: dim (2 t + dim_out) + t (r r + 1) (g + 2) + 2 g + (g + 1) r r g.
    Cost per image: n dim (2 t + dim_out) + n r r ((t + g) g + dim_out) multiply-adds; memory n r r t.
    Omitted: the biases of q, k and v. Padding replicates the border, as in `PairwiseAttention`.
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
        depth, groups = max(self.dim_out // 4, 1), self.dim_out // share
        self.scope, self.depth, self.groups = scope, depth, groups
        channels = depth * (scope * scope + 1)
        self.projection = conv1x1(dim, 2 * depth + self.dim_out, device, dtype)
        self.weighing = nn.Sequential(
            nn.BatchNorm2d(channels, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Conv2d(channels, groups, 1, bias=False, device=device, dtype=dtype),
            nn.BatchNorm2d(groups, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Conv2d(groups, scope * scope * groups, 1, device=device, dtype=dtype),
        )

    def mix(self, x: Tensor) -> Tensor:
        queries, keys, values = self.projection(x).split([self.depth, self.depth, self.dim_out], dim=1)
        patches = neighbors(pad_border(keys, self.scope), self.scope).flatten(1, 2)
        features = torch.cat([queries.flatten(2), patches], dim=1).unflatten(2, x.shape[2:])
        weights = self.weighing(features).flatten(2).unflatten(1, (self.groups, -1))
        return weighted_sum(weights, pad_border(values, self.scope), self.scope)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scope={self.scope}"
