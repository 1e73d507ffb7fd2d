"""The interface of an algorithm: its limits, its cost model and its computation."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lambdanets.ops.position.problem import Cost, NeedsGrad, Operands, Prepared, Problem
from lambdanets.ops.position.rates import Rates

# Gradients of queries, of each tensor that `Bound.prepare` returned, and of values; None where not needed.
Gradients = tuple[Tensor | None, Prepared | None, Tensor | None]


class Exclusions(NamedTuple):
    """Why "auto" excludes an algorithm from the forward and from the backward pass; "" if it does not."""

    forward: str = ""
    backward: str = ""


class Bound(ABC):
    """An algorithm bound to a problem, with its tile sizes or the like.

    A call takes at most problem.batch examples. Must be thread-safe.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def prepare(self, table: Tensor) -> Prepared:
        """Everything that depends on the table alone; table: (before + 1 + after for each axis, k, u).

        In a causal problem `after` is 0 along the first axis, and future offsets within its last row are zero already.
        The result must not share memory with the table, which may change before the backward pass.
        """

    @abstractmethod
    def forward(self, operands: Operands) -> Tensor:
        """The output (b, h, n, v)."""

    @abstractmethod
    def backward(self, grad_output: Tensor, operands: Operands, needs_grad: NeedsGrad) -> Gradients:
        """Gradients from grad_output (b, h, n, v), without that of the content lambda (see `execution`).

        Those of the prepared tensors must own their memory, as those of later calls are added in place. Sum them in
        parts, such as one row of the grid at a time: a float32 sum over all positions exceeds the error budget.
        """

    @abstractmethod
    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        """The adjoint of `prepare`."""


class BoundPositionTerm(Bound):
    """A `Bound` that computes the position term only; the content term is added in place to its results."""

    @abstractmethod
    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        """queries (b, h, n, k), values (b, n, v, u) -> (b, h, n, v)."""

    @abstractmethod
    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs_grad: NeedsGrad
    ) -> Gradients:
        """The adjoint of `position_term`."""

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
    """One exact way to compute the position interaction.

    name: the value of the `algorithm` argument. limits: the supported problems, for error messages. keeps_bfloat16:
    whether it multiplies in bfloat16 where that is faster than float32; others would lose accuracy between their steps.
    """

    name: ClassVar[str]
    limits: ClassVar[str] = "supports all problems"
    keeps_bfloat16: ClassVar[bool] = False

    @abstractmethod
    def cost(self, problem: Problem, rates: Rates) -> Cost | None:
        """The predicted cost; None for an unsupported problem. A prediction that is too low makes "auto" choose it.

        `experiments/plan.py` compares predictions with measurements.
        """

    @abstractmethod
    def bind(self, problem: Problem, rates: Rates) -> Bound:
        """Bind to a supported problem, with a batch per call whose intermediate results fit the caches.

        `Problem.limit_batch` sets that batch, `Problem.limit_lambda_bytes` for an algorithm that holds lambdas. The cost
        is that of the whole problem, with the workspace of one call.
        """

    def compute_dtype(self, dtype: torch.dtype, rates: Rates) -> torch.dtype:
        """The dtype that queries, values and table are cast to, from the dtype of the problem."""
        if dtype.itemsize > 2 or (dtype == torch.bfloat16 and self.keeps_bfloat16 and rates.bfloat16_gain > 1):
            return dtype
        return torch.float32

    def exclusions(self, problem: Problem) -> Exclusions:
        """Why "auto" should not choose it for a supported problem."""
        return Exclusions()

    def exclude_after_error(self, problem: Problem, direction: str, error: Exception) -> bool:
        """Whether "auto" may replace it after an error in the "forward" or "backward" pass of a problem."""
        return False


class Traceable(ABC):
    """An algorithm with a form without loops over sizes, so that one exported graph works for any batch and grid."""

    @abstractmethod
    def traceable_term(self, queries: Tensor, table: Tensor, values: Tensor, problem: Problem) -> Tensor:
        """queries (b, h, n, k), table (r_1..r_D, k, u) with odd sides, values (b, n, v, u) -> (b, h, n, v)."""


def _add_products(total: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """total (b, h, n, j) + rows (b, h, n, i) @ matrices (b, i, j), in place if total is contiguous as (b, n, h, j)."""
    flat_total, flat_rows = (x.transpose(1, 2).flatten(1, 2) for x in (total, rows))
    return flat_total.baddbmm_(flat_rows, matrices).unflatten(1, (-1, total.shape[1])).transpose(1, 2)
