"""Lambda convolution (Sec. 3.4) with v as one more spatial axis: an (n+1)-d convolution for n-d data.

lambda[b,k,v,:] = conv(V[b,u,v,:], R[k,u,1,r]): the kernel has length 1 along v, so no two values mix. The lambdas come
with v behind k; the code printed in the paper leaves out their transposition.
Cost: n k u v b prod(r) multiply-adds, as `convolution`; it holds a copy of the values. For 1-D and 2-D data.
"""

import math
from dataclasses import replace

from torch import Tensor

from lambdanets.ops.position import convolution
from lambdanets.ops.position.convolution import backward, examples_at_once, gradient_of_table, prepare
from lambdanets.ops.position.problem import Cost, Prepared, Problem
from lambdanets.ops.position.rates import Rates

__all__ = ["LIMITS", "backward", "cost", "examples_at_once", "forward", "gradient_of_table", "prepare"]

LIMITS = "serves 1-D and 2-D data alone, because PyTorch has no 4-d convolution"


def cost(problem: Problem, rates: Rates) -> Cost | None:
    """Predicted cost of `forward` and `backward`; None for 3-D data."""
    p = problem
    if len(p.grid) == 3:
        return None
    folded = convolution.cost(p, rates)
    transposed = p.batch * p.positions * p.value_depth * p.intra_depth
    direct = 2.0 * p.lambda_elements * p.intra_depth * math.prod(p.scope) / rates.operations_per_second
    return replace(
        folded,
        # the copy of the values is gone before the lambdas meet the queries
        workspace_bytes=max(folded.workspace_bytes, 4 * (p.lambda_elements + transposed)),
        seconds=folded.seconds + direct + rates.copy(4.0 * transposed),
    )


def forward(queries: Tensor, prepared: Prepared, values: Tensor, problem: Problem, rates: Rates) -> Tensor:
    """queries (b, h, n, k), values (b, n, v, u) -> (b, h, n, v)."""
    return convolution.forward_in_form(_values_along_an_axis, queries, prepared, values, problem)


def _values_along_an_axis(maps: Tensor, weights: Tensor) -> Tensor:
    """(b, v, u, padded..) and (k, u, r..) to (b, v, k, S..)."""
    lambdas = convolution.CONVOLUTIONS[maps.ndim - 2](maps.transpose(1, 2), weights.unsqueeze(2))
    return lambdas.transpose(1, 2)
