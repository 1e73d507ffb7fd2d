"""Lambda order: multiply the embeddings of all pairs by the values in one matrix product, then apply the queries.

lambda[(n k),(b v)] = sum_{m,u} E[(n k),(m u)] V[(m u),(b v)], where E is shared by all examples.
Cost: n m k u b v multiply-adds for any scope; E has n m k u elements. Suitable for small grids.
"""

import torch
from torch import Tensor

from lambdanets.ops.position.algorithm import Algorithm, BoundPositionAlgorithm, Gradients
from lambdanets.ops.position.problem import Cost, NeedsGrad, Prepared, Problem
from lambdanets.ops.position.rates import Rates
from lambdanets.ops.position.tiling import Axis, make_block, make_block_backward


class LambdaOrder(Algorithm):
    name = "lambda_order"
    keeps_bfloat16 = True

    def cost(self, problem: Problem, rates: Rates) -> Cost:
        p = problem.limit_lambda_bytes()
        n, k, v = p.num_positions, p.query_depth, p.value_depth
        rows, inner, columns = n * k, n * p.intra_depth, p.batch * v
        num_calls = -(-problem.batch // p.batch)
        lambda_seconds = rates.matmul_seconds(1, rows, inner, columns)
        apply_seconds = rates.matmul_seconds(n * p.batch, p.heads, k, v)
        copy_seconds = rates.copy_seconds(8.0 * rows * columns)
        preparation_seconds = rates.copy_seconds(6.0 * rows * inner)
        return Cost(
            operations=2 * rows * inner * problem.batch * v + problem.apply_operations,
            workspace_bytes=max(4, p.dtype.itemsize) * (3 * rows * inner + 3 * rows * columns),
            seconds=num_calls * (lambda_seconds + apply_seconds + copy_seconds + rates.call_overhead(10))
            + preparation_seconds / 4,
            backward_seconds=num_calls
            * (3 * lambda_seconds + 2 * apply_seconds + 2 * copy_seconds + rates.call_overhead(20))
            + 1.75 * preparation_seconds,
        )

    def bind(self, problem: Problem, rates: Rates) -> "BoundLambdaOrder":
        return BoundLambdaOrder(problem.limit_lambda_bytes())


class BoundLambdaOrder(BoundPositionAlgorithm):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._axes = [Axis(side, side, before) for side, before in zip(problem.grid, problem.before, strict=True)]

    def prepare(self, table: Tensor) -> Prepared:
        """Return E ((n, k), (m, u))."""
        return (make_block(table, self._axes).view(self.problem.num_positions * self.problem.query_depth, -1),)

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        p = self.problem
        grad_embeddings = grad_prepared[0].view(*p.grid, p.query_depth, *p.grid, p.intra_depth)
        return make_block_backward(grad_embeddings, self._axes, p.scope)

    def position_term(self, queries: Tensor, prepared: Prepared, values: Tensor) -> Tensor:
        return torch.einsum("bhnk,nkbv->bhnv", queries, self._lambdas(prepared[0], _context(values)))

    def position_gradients(
        self, grad_output: Tensor, queries: Tensor, prepared: Prepared, values: Tensor, needs_grad: NeedsGrad
    ) -> Gradients:
        p = self.problem
        (embeddings,) = prepared
        context = _context(values)
        grad_queries = grad_embeddings = grad_values = None
        if needs_grad.queries:
            grad_queries = torch.einsum("bhnv,nkbv->bhnk", grad_output, self._lambdas(embeddings, context))
        if needs_grad.table or needs_grad.values:
            grad_lambdas = torch.einsum("bhnk,bhnv->nkbv", queries, grad_output)
            grad_lambdas = grad_lambdas.reshape(p.num_positions * p.query_depth, -1)
            if needs_grad.table:
                grad_embeddings = (grad_lambdas @ context.T,)
            if needs_grad.values:
                grad_context = embeddings.T @ grad_lambdas
                grad_values = grad_context.view(p.num_positions, p.intra_depth, -1, p.value_depth).permute(2, 0, 3, 1)
        return grad_queries, grad_embeddings, grad_values

    def _lambdas(self, embeddings: Tensor, context: Tensor) -> Tensor:
        """Return lambdas (n, k, b, v)."""
        p = self.problem
        return (embeddings @ context).view(p.num_positions, p.query_depth, -1, p.value_depth)


def _context(values: Tensor) -> Tensor:
    """Reshape values (b, n, v, u) to ((m, u), (b, v))."""
    return values.permute(1, 3, 0, 2).reshape(values.shape[1] * values.shape[3], -1)
