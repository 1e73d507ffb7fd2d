"""The interface of algorithms: what they support, what they cost, and the computation."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from lambdanets.ops.position.problem import Cost, NeedsGrad, Operands, Prepared, Problem

# Gradients of queries, of the tensors from `BoundAlgorithm.prepare`, of values and of the content
# lambda; None if not needed.
Gradients = tuple[Tensor | None, Prepared | None, Tensor | None, Tensor | None]


class BoundAlgorithm(ABC):
    """An algorithm with all parameters, such as tile sizes, chosen for a problem.

    dtype: of the prepared table and the operands. Each call processes at most problem.batch
    examples. Must be thread-safe.
    """

    def __init__(self, problem: Problem, dtype: torch.dtype) -> None:
        self.problem, self.dtype = problem, dtype

    @abstractmethod
    def prepare(self, table: Tensor) -> Prepared:
        """Compute what depends only on the table (r_1..r_D, k, u), where r = before + 1 + after.

        In a causal problem `after` is 0 along the first axis, and the future offsets in the last
        row are already zero. The result must not share memory with the table, which may change
        before the backward pass.
        """

    @abstractmethod
    def forward(self, operands: Operands) -> Tensor:
        """Compute the output (b, h, n, v)."""

    @abstractmethod
    def backward(self, grad_output: Tensor, operands: Operands, needs: NeedsGrad) -> Gradients:
        """Compute the needed gradients from grad_output (b, h, n, v).

        Those of the prepared tensors must own their memory, because those of later calls are added
        in place. Split sums over positions, for example by rows of the grid: a single float32 sum
        over all positions exceeds the error budget.
        """

    @abstractmethod
    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        """Compute the gradient of the table from those of the prepared tensors."""


class BoundPositionAlgorithm(BoundAlgorithm):
    """A `BoundAlgorithm` of only the position term; the content term is added in place."""

    @abstractmethod
    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        """Compute (b, h, n, v) from queries (b, h, n, k) and values (b, n, v, u)."""

    @abstractmethod
    def position_gradients(
        self,
        grad_output: Tensor,
        queries: Tensor,
        prepared: Prepared,
        values: Tensor,
        needs: NeedsGrad,
    ) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
        """Compute the needed gradients of `position_term`."""

    def forward(self, operands: Operands) -> Tensor:
        queries, prepared, values, content = operands
        output = self.position_term(queries, prepared, values)
        return output if content is None else _add_products(output, queries, content)

    def backward(self, grad_output: Tensor, operands: Operands, needs: NeedsGrad) -> Gradients:
        queries, _, _, content = operands
        gradients = self.position_gradients(grad_output, *operands[:3], needs)
        grad_content = grad_of_content(queries, grad_output) if needs.content else None
        if gradients[0] is None or content is None:
            return *gradients, grad_content
        grad_queries = _add_products(gradients[0], grad_output, content.mT)
        return grad_queries, *gradients[1:], grad_content


class Algorithm(ABC):
    """An exact algorithm for the position interaction; name: value of the `algorithm` argument."""

    name: ClassVar[str]

    def unsupported(self, problem: Problem) -> str:
        """Why the problem is not supported, or ""."""
        return ""

    def note(self, problem: Problem) -> str:
        """What a user may want to know about a supported problem, for example the library."""
        return ""

    def fault(self, problem: Problem) -> str:
        """Why "auto" must not choose the algorithm for a supported problem, or ""."""
        return ""

    @abstractmethod
    def cost(self, problem: Problem) -> Cost:
        """The cost of one call with all examples of a supported problem."""

    @abstractmethod
    def bind(self, problem: Problem) -> BoundAlgorithm:
        """Bind to a supported problem."""


def grad_of_content(queries: Tensor, grad_output: Tensor) -> Tensor:
    """Sum q (b, h, n, k) times g (b, h, n, v) over h and n, which gives (b, k, v)."""
    queries, grad_output = (x.to(grad_output.dtype).transpose(1, 2).flatten(1, 2) for x in (queries, grad_output))
    return torch.bmm(queries.mT, grad_output)


def _add_products(total: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """Add rows (b, h, n, i) @ matrices (b, i, j) to total, in place if it is (b, n, h, j)."""
    flat_total, flat_rows = (x.transpose(1, 2).flatten(1, 2) for x in (total, rows))
    product = flat_total.baddbmm_(flat_rows, matrices)
    return product.unflatten(1, (-1, total.shape[1])).transpose(1, 2)
