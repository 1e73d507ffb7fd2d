"""The position interaction of plain operations alone, for torch.export and the formats made from it, such as ONNX.

The lambda order and the convolution again, without loops over sizes: so that one graph serves any batch and grid.
"""

import math

import torch
from torch import Tensor

from lambdanets.ops.geometry import embeddings_of_pairs, without_future
from lambdanets.ops.position.convolution import CONVOLUTIONS
from lambdanets.ops.position.problem import Problem
from lambdanets.ops.precision import output_dtype

# the algorithms that are here again
EXPORTABLE = ("lambda_order", "convolution")


def interact_exportable(
    queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, problem: Problem, algorithm: str
) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v).

    content: (b, k, v), a lambda that all positions of an example have beside their own.
    algorithm: one of EXPORTABLE; any other name takes the one with fewer operations for one example.
    """
    queries, values = (x.to(output_dtype(x.dtype)) for x in (queries, values))
    output = _position_term(queries, table.to(values.dtype), values, problem, algorithm)
    return output if content is None else output + queries @ content.unsqueeze(1)


def _position_term(queries: Tensor, table: Tensor, values: Tensor, problem: Problem, algorithm: str) -> Tensor:
    if problem.causal:
        table = without_future(table, len(problem.grid))
    if algorithm not in EXPORTABLE:
        pairs_are_fewer = problem.positions <= math.prod(table.shape[: len(problem.grid)])
        algorithm = "lambda_order" if pairs_are_fewer else "convolution"
    if algorithm == "lambda_order":
        n, k, u = problem.positions, problem.query_depth, problem.intra_depth
        embeddings = embeddings_of_pairs(table, problem.grid, 1).reshape(n * k, u * n)
        lambdas = embeddings @ values.permute(3, 1, 0, 2).reshape(u * n, -1)
        return torch.einsum("bhnk,nkbv->bhnv", queries, lambdas.view(n, k, values.shape[0], values.shape[2]))
    maps = values.permute(0, 2, 3, 1).unflatten(3, problem.grid).contiguous()
    weights = table.movedim((-2, -1), (0, 1))
    padding = [side // 2 for side in weights.shape[2:]]
    lambdas = CONVOLUTIONS[len(problem.grid)](maps.flatten(0, 1), weights, padding=padding)
    return torch.einsum("bhnk,bvkn->bhnv", queries, lambdas.unflatten(0, maps.shape[:2]).flatten(3))
