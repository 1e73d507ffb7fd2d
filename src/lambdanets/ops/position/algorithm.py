"""The interface of algorithms: limits, cost model and computation."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lambdanets.ops.position.problem import Cost, NeedsGrad, Operands, Prepared, Problem
from lambdanets.ops.position.rates import Rates

# Gradients of queries, of the tensors from `BoundAlgorithm.prepare`, and of values; None if not needed.
Gradients = tuple[Tensor | None, Prepared | None, Tensor | None]


class Exclusions(NamedTuple):
    """The reasons why "auto" must not choose an algorithm for the forward and for the backward pass; "" if it may."""

    forward: str = ""
    backward: str = ""


class BoundAlgorithm(ABC):
    """An algorithm with all parameters, such as tile sizes, chosen for a problem.

    Each call processes at most problem.batch examples. Must be thread-safe.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def prepare(self, table: Tensor) -> Prepared:
        """Compute everything that depends only on the table (r_1..r_D, k, u), where r = before + 1 + after.

        In a causal problem `after` is 0 along the first axis, and the future offsets in the last row are already zero.
        The result must not share memory with the table, which may change before the backward pass.
        """

    @abstractmethod
    def forward(self, operands: Operands) -> Tensor:
        """Compute the output (b, h, n, v)."""

    @abstractmethod
    def backward(self, grad_output: Tensor, operands: Operands, needs_grad: NeedsGrad) -> Gradients:
        """Compute the needed gradients from grad_output (b, h, n, v), except that of the content lambda.

        The gradients of the prepared tensors must own their memory, because those of later calls are added in place.
        Split sums over positions, for example by rows of the grid: a single float32 sum over all positions exceeds the
        error budget. `execution` computes the gradient of the content lambda.
        """

    @abstractmethod
    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        """Compute the gradient of the table from those of the prepared tensors: the adjoint of `prepare`."""


class BoundPositionAlgorithm(BoundAlgorithm):
    """A `BoundAlgorithm` that computes only the position term; the content term is added to the result in place."""

    @abstractmethod
    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        """Compute the position term (b, h, n, v) from queries (b, h, n, k) and values (b, n, v, u)."""

    @abstractmethod
    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs_grad: NeedsGrad
    ) -> Gradients:
        """Compute the needed gradients of `position_term`."""

    def forward(self, operands: Operands) -> Tensor:
        queries, prepared, values, content = operands
        output = self.position_term(queries, prepared, values)
        return output if content is None else _add_products(output, queries, content)

    def backward(self, grad_output: Tensor, operands: Operands, needs_grad: NeedsGrad) -> Gradients:
        gradients = self.position_gradients(grad_output, *operands[:3], needs_grad)
        if gradients[0] is None or operands.content is None:
            return gradients
        return _add_products(gradients[0], grad_output, operands.content.mT), *gradients[1:]


class Algorithm(ABC):
    """An exact algorithm for the position interaction.

    name: value of the `algorithm` argument. limits: description of the supported problems, for error messages.
    keeps_bfloat16: whether to multiply in bfloat16 where this is faster than float32. False for algorithms that would
    lose accuracy between their steps.
    """

    name: ClassVar[str]
    limits: ClassVar[str] = "supports all problems"
    keeps_bfloat16: ClassVar[bool] = False

    @abstractmethod
    def cost(self, problem: Problem, rates: Rates) -> Cost | None:
        """Predict the cost, or return None for an unsupported problem.

        If a prediction is too low, "auto" chooses a slow algorithm; `experiments/plan.py` compares predictions with
        measurements.
        """

    @abstractmethod
    def bind(self, problem: Problem, rates: Rates) -> BoundAlgorithm:
        """Bind to a supported problem; choose a batch size per call for which intermediate results fit the caches.

        Use `Problem.limit_batch`, or `Problem.limit_lambda_bytes` if the algorithm stores lambdas. `cost` is for the
        whole problem, with the workspace of one call.
        """

    def compute_dtype(self, problem: Problem, rates: Rates) -> torch.dtype:
        """Return the dtype to which queries, values and table of the problem are cast."""
        dtype = problem.dtype
        if dtype.itemsize > 2 or (dtype == torch.bfloat16 and self.keeps_bfloat16 and rates.bfloat16_gain > 1):
            return dtype
        return torch.float32

    def exclusions(self, problem: Problem) -> Exclusions:
        """Return the reasons why "auto" must not choose the algorithm for a supported problem."""
        return Exclusions()

    def exclude_after_error(self, problem: Problem, direction: str, error: Exception) -> bool:
        """Handle an error in the "forward" or "backward" pass: exclude the algorithm from "auto" for this problem.

        Returns whether to retry with another algorithm; by default nothing is excluded and the error is re-raised.
        """
        return False


def _add_products(total: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """Add rows (b, h, n, i) @ matrices (b, i, j) to total (b, h, n, j), in place if contiguous as (b, n, h, j)."""
    flat_total, flat_rows = (x.transpose(1, 2).flatten(1, 2) for x in (total, rows))
    return flat_total.baddbmm_(flat_rows, matrices).unflatten(1, (-1, total.shape[1])).transpose(1, 2)
