"""Lambda convolution (Sec. 3.4) as a depthwise convolution with channel multiplier: n-d for n-d data.

lambda[b,(v k),:] = conv(V[b,(v u),:], R[(v k),u,r]) in v groups of u channels in and k out, R the same for each group.
Cost: n k u v b prod(r) multiply-adds, as `convolution`; it holds v copies of the table.
"""

import math

from torch import Tensor

from lambdanets.ops.position import convolution
from lambdanets.ops.position.problem import Cost, Problem


def cost(problem: Problem) -> Cost:
    """Predicted cost of `interact`."""
    folded = convolution.cost(problem)
    repeated = problem.value_depth * problem.query_depth * problem.intra_depth * math.prod(problem.scope)
    # the copies of the table are gone before the lambdas meet the queries
    while_convolving = (problem.lambda_elements + repeated) * problem.dtype.itemsize
    return Cost(folded.operations, max(folded.workspace_bytes, while_convolving))


def interact(queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v)."""
    return convolution.interact_in_form(_a_group_for_each_value, queries, table, values, problem)


def _a_group_for_each_value(maps: Tensor, weights: Tensor, dilation: int) -> Tensor:
    """(b, v, u, S..) and (k, u, r..) to (b, v, k, S..)."""
    v, k = maps.shape[1], weights.shape[0]
    padding = [side // 2 * dilation for side in weights.shape[2:]]
    repeated = weights.expand(v, *weights.shape).flatten(0, 1)  # ((v k), u, r..)
    convolve = convolution.CONVOLUTIONS[maps.ndim - 3]
    lambdas = convolve(maps.flatten(1, 2), repeated, padding=padding, dilation=dilation, groups=v)
    return lambdas.unflatten(1, (v, k))
