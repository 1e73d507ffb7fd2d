"""Lambda order: all pairs of embeddings times the values as one matrix product, then the queries.

lambda[n,k,(b v)] = sum_{m,u} E[(n k),(m u)] V[(m u),(b v)]: one product whose left factor the whole batch shares.
Cost: n m k u b v multiply-adds whatever the scope; E takes n m k u numbers. For small grids.
"""

import torch
from torch import Tensor

from lambdanets.ops.geometry import embeddings_of_pairs
from lambdanets.ops.position.problem import Cost, Problem


def cost(problem: Problem) -> Cost:
    """Predicted cost of `interact`."""
    pairs = problem.positions**2 * problem.query_depth * problem.intra_depth
    operations = 2 * pairs * problem.batch * problem.value_depth + problem.apply_operations
    return Cost(operations, (pairs + 2 * problem.lambda_elements) * problem.dtype.itemsize)


def interact(queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v)."""
    n, k, u = problem.positions, problem.query_depth, problem.intra_depth
    # E is (S_1..S_D, k, u, S_1..S_D); values go in as (u, m) to meet it without another copy.
    embeddings = embeddings_of_pairs(table, problem.grid, problem.dilation).reshape(n * k, u * n)
    context = values.permute(3, 1, 0, 2).reshape(u * n, -1)
    lambdas = (embeddings @ context).view(n, k, problem.batch, problem.value_depth)
    return torch.einsum("bhnk,nkbv->bhnv", queries, lambdas)
