"""Lambda order: all pairs of embeddings times the values as one matrix product, then the queries.

lambda[n,k,(b v)] = sum_{m,u} E[(n k),(m u)] V[(m u),(b v)]: one product whose left factor the whole batch shares.
Cost: n m k u b v multiply-adds whatever the scope; E takes n m k u numbers. For small grids.
"""

import torch
from torch import Tensor

from lambdanets.ops.position.problem import Cost, Prepared, Problem, Wanted
from lambdanets.ops.position.rates import Rates
from lambdanets.ops.position.toeplitz import Axis, make_block, sum_of_block

_LAMBDA_BYTES = 64 << 20, 256 << 20  # on a core, on a GPU


def operations(problem: Problem) -> int:
    """Floating-point operations of a forward pass, two per multiply-add."""
    p = problem
    return 2 * p.positions**2 * p.query_depth * p.intra_depth * p.batch * p.value_depth + p.apply_operations


def cost(problem: Problem, rates: Rates) -> Cost:
    """Predicted cost of `forward` and `backward`."""
    p = problem
    at_once = min(p.batch, examples_at_once(p, rates))
    passes = -(-p.batch // at_once)
    n, rows, inner, maps = (
        p.positions,
        p.positions * p.query_depth,
        p.positions * p.intra_depth,
        at_once * p.value_depth,
    )
    lambdas = rates.product(1, rows, inner, maps)
    applied = rates.product(n * at_once, p.heads, p.query_depth, p.value_depth)
    copied = rates.copy(8.0 * rows * maps)
    making = rates.copy(6.0 * rows * inner)
    return Cost(
        operations=operations(p),
        workspace_bytes=max(4, p.dtype.itemsize) * (3 * rows * inner + 3 * rows * maps),
        seconds=passes * (lambdas + applied + copied + rates.calls(10)) + making / 4,
        backward_seconds=passes * (3 * lambdas + 2 * applied + 2 * copied + rates.calls(20)) + 1.75 * making,
    )


def examples_at_once(problem: Problem, rates: Rates) -> int:
    """As many as have lambdas of a moderate size."""
    example_bytes = 4 * problem.positions * problem.query_depth * problem.value_depth
    return max(1, problem.within_cache(*_LAMBDA_BYTES) // example_bytes)


def prepare(table: Tensor, problem: Problem, rates: Rates) -> Prepared:
    """E ((n, k), (m, u))."""
    return (make_block(table, _axes(problem)).view(problem.positions * problem.query_depth, -1),)


def gradient_of_table(gradients: Prepared, problem: Problem, rates: Rates) -> Tensor:
    """The table's gradient from that of E."""
    pairs = gradients[0].view(*problem.grid, problem.query_depth, *problem.grid, problem.intra_depth)
    return sum_of_block(pairs, _axes(problem), problem.scope)


def forward(queries: Tensor, prepared: Prepared, values: Tensor, problem: Problem, rates: Rates) -> Tensor:
    """queries (b, h, n, k), values (b, n, v, u) -> (b, h, n, v)."""
    return torch.einsum("bhnk,nkbv->bhnv", queries, _lambdas(prepared[0], _context(values), problem))


def backward(
    gradient: Tensor,
    queries: Tensor,
    prepared: Prepared,
    values: Tensor,
    problem: Problem,
    wanted: Wanted,
    rates: Rates,
) -> tuple[Tensor | None, Prepared | None, Tensor | None]:
    """Gradients of queries, E and values from that of the output (b, h, n, v); the lambdas are computed again."""
    p = problem
    (embeddings,) = prepared
    context = _context(values)
    of_queries = of_embeddings = of_values = None
    if wanted.queries:
        of_queries = torch.einsum("bhnv,nkbv->bhnk", gradient, _lambdas(embeddings, context, p))
    if wanted.table or wanted.values:
        of_lambdas = torch.einsum("bhnk,bhnv->nkbv", queries, gradient).reshape(p.positions * p.query_depth, -1)
        if wanted.table:
            of_embeddings = (of_lambdas @ context.T,)
        if wanted.values:
            of_values = (embeddings.T @ of_lambdas).view(p.positions, p.intra_depth, -1, p.value_depth)
            of_values = of_values.permute(2, 0, 3, 1)
    return of_queries, of_embeddings, of_values


def _axes(problem: Problem) -> list[Axis]:
    return [Axis(side, side, before) for side, before in zip(problem.grid, problem.before, strict=True)]


def _context(values: Tensor) -> Tensor:
    """(b, n, v, u) to ((m, u), (b, v))."""
    return values.permute(1, 3, 0, 2).reshape(values.shape[1] * values.shape[3], -1)


def _lambdas(embeddings: Tensor, context: Tensor, problem: Problem) -> Tensor:
    """(n, k, b, v)."""
    return (embeddings @ context).view(problem.positions, problem.query_depth, -1, problem.value_depth)
