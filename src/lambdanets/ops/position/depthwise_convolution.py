"""Lambda convolution (Sec. 3.4) as a depthwise convolution with channel multiplier: n-d for n-d data.

lambda[b,(v k),:] = conv(V[b,(v u),:], R[(v k),u,r]) in v groups of u channels in and k out, R the same for each group.
Cost: n k u v b prod(r) multiply-adds, as `convolution`; it holds v copies of the table.
"""

import math
from dataclasses import replace

from torch import Tensor

from lambdanets.ops.position import convolution
from lambdanets.ops.position.convolution import backward, examples_at_once, gradient_of_table, prepare
from lambdanets.ops.position.problem import Cost, Prepared, Problem
from lambdanets.ops.position.rates import Rates

__all__ = ["backward", "cost", "examples_at_once", "forward", "gradient_of_table", "prepare"]


def cost(problem: Problem, rates: Rates) -> Cost:
    """Predicted cost of `forward` and `backward`."""
    folded = convolution.cost(problem, rates)
    p = problem
    repeated = p.value_depth * p.query_depth * p.intra_depth * math.prod(p.scope)
    # a group has too few channels for a matrix product
    grouped = 2.0 * p.lambda_elements * p.intra_depth * math.prod(p.scope) / rates.operations_per_second
    return replace(
        folded,
        # the copies of the table are gone before the lambdas meet the queries
        workspace_bytes=max(folded.workspace_bytes, 4 * (p.lambda_elements + repeated)),
        seconds=folded.seconds + 2 * grouped + rates.copy(4.0 * repeated),
    )


def forward(queries: Tensor, prepared: Prepared, values: Tensor, problem: Problem, rates: Rates) -> Tensor:
    """queries (b, h, n, k), values (b, n, v, u) -> (b, h, n, v)."""
    return convolution.forward_in_form(_a_group_for_each_value, queries, prepared, values, problem)


def _a_group_for_each_value(maps: Tensor, weights: Tensor) -> Tensor:
    """(b, v, u, padded..) and (k, u, r..) to (b, v, k, S..)."""
    v, k = maps.shape[1], weights.shape[0]
    repeated = weights.expand(v, *weights.shape).flatten(0, 1)  # ((v k), u, r..)
    lambdas = convolution.CONVOLUTIONS[maps.ndim - 3](maps.flatten(1, 2), repeated, groups=v)
    return lambdas.unflatten(1, (v, k))
