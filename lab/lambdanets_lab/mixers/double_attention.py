"""Double attention: gathers global features over all positions, then distributes them to each position."""

import torch
from torch import Tensor

from lambdanets.ops import lambda_interaction
from lambdanets.ops.checks import check_sizes
from lambdanets_lab.mixers.mixer import Mixer, conv1x1, join_heads, split_heads


class DoubleAttention(Mixer):
    """Double attention (Chen et al. 2018, A2-Nets, Sec. 3): Z = (A softmax_n(B)^T) softmax_c(V), y = W_o Z.

    A, B and V are 1x1 projections of x to `depth` channels each. The first factor gathers second-order features over
    all positions n. The second factor distributes them, weighted by a softmax over the channels c of V. The
    implementation is a lambda with only the content term and normalized queries.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d`; default 1.
        depth: number of channels of A, B and V; default None for dim_out / 2, which reproduces Table 3 of the
            LambdaNetworks paper most closely.

    Parameters: 3 dim depth + depth dim_out. Cost per image: n (parameters + 2 depth^2) multiply-adds.
    Omitted: biases, and the shortcut and norm, which belong to the residual block. The original inserts the layer
    between blocks of convolutions; here it replaces the 3x3 convolutions.
    Raises ValueError naming the invalid argument.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        depth: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim_out, stride)
        depth = max(self.dim_out // 2, 1) if depth is None else depth
        check_sizes(depth=depth)
        self.projection = conv1x1(dim, 3 * depth, device, dtype)
        self.output_projection = conv1x1(depth, self.dim_out, device, dtype)

    def mix(self, x: Tensor) -> Tensor:
        features, keys, queries = (split_heads(part, 1) for part in self.projection(x).chunk(3, dim=1))
        output = lambda_interaction(queries.softmax(-1).to(keys.dtype), keys.squeeze(1), features.squeeze(1), None)
        return self.output_projection(join_heads(output, *x.shape[2:]))
