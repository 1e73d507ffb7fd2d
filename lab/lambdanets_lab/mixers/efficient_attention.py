"""Linear attention with a softmax of the queries and a softmax of the keys."""

import torch
from torch import Tensor

from lambdanets.ops import lambda_interaction
from lambdanets_lab.mixers.mixer import Mixer, check_divides, conv1x1, join_heads, split_heads


class EfficientAttention(Mixer):
    """Efficient attention (Shen et al. 2018, Sec. 3.2): y[n,h] = softmax_k(q[n,h])^T (softmax_m(k[:,h])^T v[:,h]).

    Queries are normalized over their channels, keys over all positions m. Heads are concatenated and projected by W_o.
    There is no position term. The implementation is a multi-head lambda with only the content term and normalized
    queries.

    Input: (b, dim, H, W), any H and W. Output: (b, dim_out, ceil(H / stride), ceil(W / stride)).

    Args:
        dim: number of input channels.
        dim_out: number of output channels; default dim.
        stride: stride of the average pooling after the layer, as in `LambdaLayer2d`; default 1.
        heads: h, must divide dim_out; default 8. Each head has dim_out / h channels of queries, keys and values.

    Parameters: 3 dim dim_out + dim_out^2. Cost per image: n (parameters + 2 dim_out^2 / heads) multiply-adds.
    Omitted: biases, and the shortcut, which belongs to the residual block.
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
        self.projection = conv1x1(dim, 3 * self.dim_out, device, dtype)
        self.output_projection = conv1x1(self.dim_out, self.dim_out, device, dtype)

    def mix(self, x: Tensor) -> Tensor:
        queries, keys, values = (split_heads(part, self.heads) for part in self.projection(x).chunk(3, dim=1))
        output = lambda_interaction(queries.softmax(-1).to(keys.dtype), keys, values, None, multi_head=True)
        return self.output_projection(join_heads(output, *x.shape[2:]))
