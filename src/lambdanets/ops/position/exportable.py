"""The position interaction of plain operations alone, for torch.export and the formats made from it, such as ONNX."""

import math

from torch import Tensor

from lambdanets.ops.geometry import without_future
from lambdanets.ops.position.algorithm import Traceable
from lambdanets.ops.position.convolution import Convolution
from lambdanets.ops.position.lambda_order import LambdaOrder
from lambdanets.ops.position.plan import ALGORITHMS
from lambdanets.ops.position.problem import Problem
from lambdanets.ops.precision import output_dtype


def interact_exportable(
    queries: Tensor, table: Tensor, values: Tensor, content: Tensor | None, problem: Problem, algorithm: str
) -> Tensor:
    """queries (b, h, n, k), table (r_1..r_D, k, u) cropped to the grid, values (b, n, v, u) -> (b, h, n, v).

    content: (b, k, v), a lambda that all positions of an example have beside their own. An algorithm that is not
    Traceable is replaced by the one with fewer operations for one example.
    """
    queries, values = (x.to(output_dtype(x.dtype)) for x in (queries, values))
    table = table.to(values.dtype)
    if problem.causal:
        table = without_future(table, len(problem.grid))
    traceable = ALGORITHMS.get(algorithm)
    if not isinstance(traceable, Traceable):
        pairs_are_fewer = problem.positions <= math.prod(table.shape[: len(problem.grid)])
        traceable = LambdaOrder() if pairs_are_fewer else Convolution()
    output = traceable.traceable_term(queries, table, values, problem)
    return output if content is None else output + queries @ content.unsqueeze(1)
