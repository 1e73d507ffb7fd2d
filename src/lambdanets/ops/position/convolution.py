"""Lambda convolution (Sec. 3.4) with v folded into the batch: an n-d convolution for n-d data, never n+1.

lambda[(b v),k,:] = conv(V[(b v),u,:], R[k,u,r]): the value channels share the weights, so they ride in the batch.
Cost: n k u v b prod(r) multiply-adds; nothing of size n m. For small scopes and large grids.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.position.problem import Cost, Problem

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def cost(problem: Problem) -> Cost:
    """Predicted cost of `interact`."""
    operations = 2 * problem.lambda_elements * problem.intra_depth * math.prod(problem.scope)
    return Cost(operations + problem.apply_operations, 2 * problem.lambda_elements * problem.dtype.itemsize)


def interact(queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v)."""
    dimensions = len(problem.grid)
    maps = values.permute(0, 2, 3, 1).reshape(-1, problem.intra_depth, *problem.grid)
    weights = table.movedim((-2, -1), (0, 1)).contiguous()
    padding = [side // 2 * problem.dilation for side in problem.scope]
    lambdas = _CONVOLUTIONS[dimensions](maps, weights, padding=padding, dilation=problem.dilation)
    lambdas = lambdas.view(problem.batch, problem.value_depth, problem.query_depth, problem.positions)
    return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas)
