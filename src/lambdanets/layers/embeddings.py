"""Position embeddings as modules, which layers take as an argument and may share."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from lambdanets.layers.module import Layer
from lambdanets.ops.checks import check_sizes, check_tensors
from lambdanets.ops.geometry import check_resize, pairwise_embeddings, resize_table


class EmbeddingTable(Layer):
    """Base of the embedding modules: a parameter `table` ([h,] *sides, k[, u]), initialized from N(0, 1) (Sec. F.2)."""

    def __init__(
        self, sides: tuple[int, ...], query_depth: int, intra_depth: int, heads: int | None, **factory: Any
    ) -> None:
        super().__init__()
        check_sizes(query_depth=query_depth, intra_depth=intra_depth, **({} if heads is None else {"heads": heads}))
        self.query_depth, self.intra_depth, self.heads = query_depth, intra_depth, heads
        lead, intra = () if heads is None else (heads,), () if intra_depth == 1 else (intra_depth,)
        self.table = nn.Parameter(torch.empty(*lead, *sides, query_depth, *intra, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table)

    def extra_repr(self) -> str:
        return " x ".join(str(side) for side in self.table.shape)


class RelativeEmbedding(EmbeddingTable):
    """One embedding per relative offset: the table R (r_1..r_D, k[, u]) of Sec. 3.3, initialized from N(0, 1) (F.2).

    e[n,m] = R[center + (m - n) / dilation]. The same table serves any grid; see `lambdanets.position_interaction`.

    Args:
        scope: the odd sides r_1..r_D, D of 1, 2 or 3.
        query_depth, intra_depth: k and u. heads: for a multi-head layer, one table per head, (h, r_1..r_D, k[, u]).
    """

    def __init__(
        self,
        scope: tuple[int, ...],
        query_depth: int,
        intra_depth: int = 1,
        *,
        heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(scope, tuple) or not 1 <= len(scope) <= 3:
            raise ValueError(f"scope must be a tuple of 1, 2 or 3 odd sides, got {scope!r}")
        if any(not isinstance(side, int) or isinstance(side, bool) or side < 1 or side % 2 == 0 for side in scope):
            raise ValueError(f"scope must be odd and positive in every side, got {scope!r}")
        super().__init__(scope, query_depth, intra_depth, heads, device=device, dtype=dtype)
        self.dimensions = len(scope)

    @property
    def scope(self) -> tuple[int, ...]:
        """The sides r_1..r_D of the table."""
        first = 0 if self.heads is None else 1
        return tuple(self.table.shape[first : first + self.dimensions])

    def forward(self) -> Tensor:
        return self.table

    def resize(self, scope: tuple[int, ...], keep_sum: bool = True) -> None:
        """Interpolate the table to another scope in place, for another resolution; see `resize_table`.

        Replaces the parameter by a new one with the same dtype, device and requires_grad, so optimizers must be created
        again. Raises ValueError unless scope has D odd sides, or if the table is parametrized.
        """
        if is_parametrized(self, "table"):
            raise ValueError("table must not be parametrized when it is resized; remove the parametrization first")
        tables = self.table.detach() if self.heads is not None else self.table.detach().unsqueeze(0)
        check_resize(tables[0], scope, "scope")
        if len(scope) != self.dimensions:
            raise ValueError(f"scope must have as many sides as before, {self.dimensions}, got {scope}")
        resized = torch.stack([resize_table(table, scope, keep_sum=keep_sum) for table in tables])
        resized = resized if self.heads is not None else resized[0]
        self.table = nn.Parameter(resized, requires_grad=self.table.requires_grad)

    def of_pairs(
        self, grid: tuple[int, ...], context_grid: tuple[int, ...] | None = None, *, dilation: int = 1
    ) -> Tensor:
        """E ([h,] n, m, k[, u]) for all pairs of a grid with itself, or with a context grid of the same origin.

        Memory: n m k u elements. Raises ValueError unless the grids have D positive sides.
        """
        for name, sides in {"grid": grid, "context_grid": grid if context_grid is None else context_grid}.items():
            if not isinstance(sides, tuple) or len(sides) != self.dimensions:
                raise ValueError(f"{name} must be a tuple of {self.dimensions} sides, got {sides!r}")
            check_sizes(**{f"{name}[{axis}]": side for axis, side in enumerate(sides)})
        check_sizes(dilation=dilation)
        if self.heads is not None:
            return torch.stack([self._of_pairs(table, grid, context_grid, dilation) for table in self.table])
        return self._of_pairs(self.table, grid, context_grid, dilation)

    def _of_pairs(
        self, table: Tensor, grid: tuple[int, ...], context_grid: tuple[int, ...] | None, dilation: int
    ) -> Tensor:
        if self.intra_depth == 1:
            table = table.unsqueeze(-1)
        context_grid = grid if context_grid is None else context_grid
        pairs = pairwise_embeddings(table, grid, dilation, context_grid)  # (S_1..S_D, k, u, C_1..C_D)
        pairs = pairs.flatten(len(grid) + 2).flatten(0, len(grid) - 1).movedim(-1, 1)
        return pairs.squeeze(-1) if self.intra_depth == 1 else pairs


class DenseEmbedding(EmbeddingTable):
    """A learned embedding for every pair of positions: E (n, m, k[, u]), initialized from N(0, 1).

    For up to n query and m context positions. n m k u parameters, h times as many with `heads` (multi-head).
    """

    def __init__(
        self,
        positions: int,
        context_positions: int,
        query_depth: int,
        intra_depth: int = 1,
        *,
        heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(positions=positions, context_positions=context_positions)
        sides = (positions, context_positions)
        super().__init__(sides, query_depth, intra_depth, heads, device=device, dtype=dtype)
        self.positions, self.context_positions = sides

    def forward(self, positions: int, context_positions: int) -> Tensor:
        """E ([h,] n, m, k[, u]) of the first n and m positions, a view. Raises ValueError if the table is smaller."""
        check_sizes(positions=positions, context_positions=context_positions)
        if positions > self.positions or context_positions > self.context_positions:
            raise ValueError(
                f"positions must be at most {self.positions} x {self.context_positions} for this DenseEmbedding, "
                f"got {positions} x {context_positions}"
            )
        first = 0 if self.heads is None else 1
        return self.table.narrow(first, 0, positions).narrow(first + 1, 0, context_positions)


class EdgeEmbedding(EmbeddingTable):
    """Embeddings for graphs whose edges differ by example (A.2): one embedding per edge type, 0 without an edge.

    e[b,n,m] = sum over the edges (b, n, m) of T[type], with a table T (types, k[, u]) initialized from N(0, 1), or one
    per head of a multi-head layer, (h, types, k[, u]).
    """

    def __init__(
        self,
        edge_types: int,
        query_depth: int,
        intra_depth: int = 1,
        *,
        heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(edge_types=edge_types)
        super().__init__((edge_types,), query_depth, intra_depth, heads, device=device, dtype=dtype)

    def forward(self, edges: Tensor, types: Tensor, size: tuple[int, int, int]) -> Tensor:
        """E (b, [h,] n, m, k[, u]) from a list of edges.

        edges: (3, edges) int64, rows example, query node n, context node m. Several edges between two nodes add up; for
        edges in both directions list both. types: (edges,) int64, from 0 to edge_types - 1.
        size: (b, n, m), with the number of nodes of the largest graph. Memory: b n m k u elements.
        Raises ValueError naming the invalid argument.
        """
        if isinstance(edges, fx.Proxy):
            return self.fx_call(edges, types, size)
        check_tensors(edges=edges, types=types)
        if edges.ndim != 2 or edges.shape[0] != 3 or edges.dtype != torch.int64:
            raise ValueError(f"edges must be (3, edges) of int64, got {edges.dtype} of shape {tuple(edges.shape)}")
        if types.dtype != torch.int64 or types.shape != edges.shape[1:]:
            raise ValueError(
                f"types must be ({edges.shape[1]},) of int64, one per edge; got {types.dtype} of shape "
                f"{tuple(types.shape)}"
            )
        if not isinstance(size, tuple) or len(size) != 3:
            raise ValueError(f"size must be (b, n, m), got {size!r}")
        check_sizes(**{f"size[{axis}]": side for axis, side in enumerate(size)})
        table = self.table.unsqueeze(0) if self.heads is None else self.table  # (h or 1, types, k[, u])
        # tensor values cannot be checked while compiling or on the meta device
        if not torch.compiler.is_compiling() and edges.device.type != "meta":
            limits = torch.tensor(size, device=edges.device)[:, None]
            if ((edges < 0) | (edges >= limits)).any():
                raise ValueError(f"edges must lie within size = {tuple(size)}, got one outside of it")
            if ((types < 0) | (types >= table.shape[1])).any():
                raise ValueError(f"types must be from 0 to {table.shape[1] - 1}, got one outside of that")
        rows = F.embedding(types, table.movedim(1, 0).flatten(1))  # (edges, h k u)
        pairs = rows.new_zeros(*size, rows.shape[1])
        pairs = pairs.index_put((edges[0], edges[1], edges[2]), rows, accumulate=True)
        pairs = pairs.unflatten(-1, (table.shape[0], *table.shape[2:]))  # (b, n, m, h, k[, u])
        return pairs.squeeze(3) if self.heads is None else pairs.movedim(3, 1)
