"""Lambda convolution (Sec. 3.4) with v as one more spatial axis: an (n+1)-d convolution for n-d data.

lambda[b,k,v,:] = conv(V[b,u,v,:], R[k,u,1,r]): the kernel has length 1 along v, so no two values mix. The lambdas come
with v behind k; the code printed in the paper leaves out their transposition.
Cost: n k u v b prod(r) multiply-adds, as `convolution`; it holds a copy of the values. For 1-D and 2-D data.
"""

from torch import Tensor

from lambdanets.ops.position import convolution
from lambdanets.ops.position.problem import Cost, Problem

LIMITS = "serves 1-D and 2-D data alone, because PyTorch has no 4-d convolution"


def cost(problem: Problem) -> Cost | None:
    """Predicted cost of `interact`; None for 3-D data."""
    if len(problem.grid) == 3:
        return None
    folded = convolution.cost(problem)
    transposed = problem.batch * problem.positions * problem.value_depth * problem.intra_depth
    # the copy of the values is gone before the lambdas meet the queries
    while_convolving = (problem.lambda_elements + transposed) * problem.dtype.itemsize
    return Cost(folded.operations, max(folded.workspace_bytes, while_convolving))


def interact(queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v)."""
    return convolution.interact_in_form(_values_along_an_axis, queries, table, values, problem)


def _values_along_an_axis(maps: Tensor, weights: Tensor, dilation: int) -> Tensor:
    """(b, v, u, S..) and (k, u, r..) to (b, v, k, S..)."""
    padding = [0, *(side // 2 * dilation for side in weights.shape[2:])]
    convolve = convolution.CONVOLUTIONS[maps.ndim - 2]
    dilations = [1] + [dilation] * (weights.ndim - 2)
    lambdas = convolve(maps.transpose(1, 2), weights.unsqueeze(2), padding=padding, dilation=dilations)
    return lambdas.transpose(1, 2)
