"""Linear attention with separate softmaxes of queries and keys."""

import torch
from torch import Tensor

from lambdanets.layers.baselines.mixer import Mixer, check_divides, join_heads, project, split_heads
from lambdanets.ops import lambda_interaction


class EfficientAttention(Mixer):
    """Efficient attention (Shen et al. 2018, Sec. 3.2): y[n,h] = softmax_k(q[n,h])^T (softmax_m(k[:,h])^T v[:,h]).

    Queries are normalized over their channels, keys over all positions m; heads are concatenated and projected by W_o.
    Computed as a multi-head content-only lambda with normalized queries. There is no position term.

    Input (b, dim, H, W), output (b, dim_out, ceil(H / stride), ceil(W / stride)), any H and W.

    Args:
        heads: must divide dim_out; queries, keys and values have dim_out / heads channels in each.
        stride: average pooling after the layer, as in `LambdaLayer2d`.

    Parameters: 3 dim dim_out + dim_out^2. Cost per image: n (parameters + 2 dim_out^2 / heads) multiply-adds.
    Omitted: biases, and the residual connection, which belongs to the residual block.
    Raises ValueError naming the invalid argument.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        *,
        stride: int = 1,
        heads: int = 8,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim_out, stride)
        check_divides("heads", heads, self.dim_out)
        self.heads = heads
        self.projection = project(dim, 3 * self.dim_out, device, dtype)
        self.output_projection = project(self.dim_out, self.dim_out, device, dtype)

    def mix(self, x: Tensor) -> Tensor:
        queries, keys, values = (split_heads(part, self.heads) for part in self.projection(x).chunk(3, dim=1))
        output = lambda_interaction(queries.softmax(-1).to(keys.dtype), keys, values, None, multi_head=True)
        return self.output_projection(join_heads(output, *x.shape[2:]))
