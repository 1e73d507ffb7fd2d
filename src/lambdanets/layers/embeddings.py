"""Position embedding modules, which are passed to layers. Several layers may share one."""

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from lambdanets.layers.module import Layer
from lambdanets.ops.checks import check_sizes, check_tensors
from lambdanets.ops.tables import pairwise_embeddings, resize_table


class EmbeddingTable(Layer):
    """Base class of the embedding modules, with a parameter `table` ([h,] *sides, k[, u]) initialized from N(0, 1)."""

    def __init__(
        self,
        sides: tuple[int, ...],
        query_depth: int,
        intra_depth: int,
        *,
        heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(query_depth=query_depth, intra_depth=intra_depth, **({} if heads is None else {"heads": heads}))
        self.query_depth, self.intra_depth, self.heads = query_depth, intra_depth, heads
        head_axes, intra_axes = () if heads is None else (heads,), () if intra_depth == 1 else (intra_depth,)
        self.table = nn.Parameter(torch.empty(*head_axes, *sides, query_depth, *intra_axes, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the table as a matrix: `to(memory_format=...)` takes tensors with 4 or 5 axes for maps.

        The first axis stays, since FSDP shards it.
        """

        def convert(table: Tensor) -> Tensor:  # or a part of a parametrization, or an FSDP shard with one axis
            return fn(table.flatten(1)).view(table.shape) if table.ndim > 3 else fn(table)

        return super()._apply(convert, recurse)

    def extra_repr(self) -> str:
        return " x ".join(str(side) for side in self.table.shape)


class RelativeEmbedding(EmbeddingTable):
    """Relative position embeddings: a table R (r_1..r_D, k[, u]) with one embedding per offset (Sec. 3.3 of the paper).

    e[n,m] = R[center + (m - n) / dilation], initialized from N(0, 1) (Sec. F.2). A table works for grids of any size;
    see `lambdanets.position_interaction`.

    Args:
        scope: tuple of 1, 2 or 3 odd sides r_1..r_D, in positions.
        query_depth: k, the query depth of the layer.
        intra_depth: u, the intra-depth of the layer; default 1.
        options: heads, the number of heads of a layer with multi_head=True, for one table per head,
            (h, r_1..r_D, k[, u]); default None for one table. device and dtype.
    """

    def __init__(self, scope: tuple[int, ...], query_depth: int, intra_depth: int = 1, **options: Any) -> None:
        is_odd = isinstance(scope, tuple) and all(isinstance(r, int) and r > 0 and r % 2 == 1 for r in scope)
        if not is_odd or not 1 <= len(scope) <= 3:
            raise ValueError(f"scope must be a tuple of 1, 2 or 3 odd and positive sides, got {scope!r}")
        super().__init__(scope, query_depth, intra_depth, **options)
        self.dimensions = len(scope)

    @property
    def scope(self) -> tuple[int, ...]:
        """Sides r_1..r_D of the table."""
        first_axis = 0 if self.heads is None else 1
        return tuple(self.table.shape[first_axis : first_axis + self.dimensions])

    @property
    def tables(self) -> Tensor:
        """The table of each head, or of all heads, with the axis u: (h or 1, r_1..r_D, k, u)."""
        table = self()  # a call, which hooks and subclasses may change
        return table.reshape(self.heads or 1, *self.scope, self.query_depth, self.intra_depth)

    def forward(self) -> Tensor:
        return self.table

    def resize(self, scope: tuple[int, ...], keep_sum: bool = True) -> None:
        """Interpolate the table to another scope in place, for images of another resolution.

        Replaces the parameter by a new one with the same dtype, device and requires_grad, so optimizers must be created
        again.

        Args:
            scope: new sides, odd, as many as before.
            keep_sum: rescale the table so that the outputs of the layer keep their scale; default True. See
                `lambdanets.ops.resize_table`.

        Raises ValueError if the scope is invalid.
        """
        if not isinstance(scope, tuple) or len(scope) != self.dimensions:
            raise ValueError(f"scope must have {self.dimensions} side(s), like the current scope, got {scope}")
        resized = self.resized(self.table.detach(), scope, keep_sum)
        self.table = nn.Parameter(resized, requires_grad=self.table.requires_grad)

    def differs_in_scope(self, table: Tensor) -> bool:
        """Whether a table has the axes of this embedding's, with other sides."""
        before = int(self.heads is not None)
        after = before + self.dimensions
        shape, own = table.shape, self.table.shape
        return shape != own and (*shape[:before], *shape[after:]) == (*own[:before], *own[after:])

    def resized(self, table: Tensor, scope: tuple[int, ...], keep_sum: bool = True) -> Tensor:
        """Return a table for as many heads as this embedding has, interpolated to another scope as by `resize`."""
        heads = [resize_table(each, scope, keep_sum=keep_sum) for each in ([table] if self.heads is None else table)]
        return heads[0] if self.heads is None else torch.stack(heads)

    def of_pairs(
        self, grid: tuple[int, ...], context_grid: tuple[int, ...] | None = None, *, dilation: int = 1
    ) -> Tensor:
        """Return the embeddings E ([h,] n, m, k[, u]) of all pairs of positions.

        Memory: n m k u elements, per head if the embedding has heads.

        Args:
            grid: the D sides of the grid of query positions.
            context_grid: sides of the grid of context positions, with the same origin; default None for `grid`.
            dilation: distance between adjacent entries of the table, in positions; default 1.

        Raises ValueError unless the grids have D sides.
        """
        if {len(grid), len(context_grid or grid)} != {self.dimensions}:
            raise ValueError(f"grid must be a tuple of {self.dimensions} sides, got {grid} and {context_grid}")
        heads = []
        for table in self.tables:
            pairs = pairwise_embeddings(table, grid, dilation, context_grid)  # (S_1..S_D, k, u, C_1..C_D)
            pairs = pairs.flatten(len(grid) + 2).flatten(0, len(grid) - 1).movedim(3, 1)
            heads.append(pairs if self.intra_depth > 1 else pairs.squeeze(-1))
        return heads[0] if self.heads is None else torch.stack(heads)


class DenseEmbedding(EmbeddingTable):
    """A learned embedding for each pair of positions: a table E (n, m, k[, u]), initialized from N(0, 1).

    Parameters: n m k u; with `heads`, h n m k u.

    Args:
        positions: n, the maximum number of query positions; that of a map, if the layer has more than one dimension.
        context_positions: m, the maximum number of context positions.

    The other arguments are those of RelativeEmbedding.
    """

    def __init__(
        self, positions: int, context_positions: int, query_depth: int, intra_depth: int = 1, **options: Any
    ) -> None:
        check_sizes(positions=positions, context_positions=context_positions)
        super().__init__((positions, context_positions), query_depth, intra_depth, **options)
        self.positions, self.context_positions = positions, context_positions

    def forward(self, positions: int, context_positions: int) -> Tensor:
        """Return a view E ([h,] n, m, k[, u]) of the table for the first n query and m context positions.

        Raises ValueError if the table is smaller.
        """
        if positions > self.positions or context_positions > self.context_positions:
            raise ValueError(
                f"positions must be at most {self.positions} x {self.context_positions} for this DenseEmbedding, "
                f"got {positions} x {context_positions}"
            )
        query_axis = 0 if self.heads is None else 1
        return self.table.narrow(query_axis, 0, positions).narrow(query_axis + 1, 0, context_positions)


class EdgeEmbedding(EmbeddingTable):
    """Embeddings of the edges of graphs, with one learned embedding per edge type (Sec. A.2 of the paper).

    e[b,n,m] is the sum of T[type] over the edges from node n to node m in graph b, and 0 without an edge. The table T
    (types, k[, u]) is initialized from N(0, 1). Each example of a batch may have a different graph.

    Args:
        edge_types: number of edge types.

    The other arguments are those of RelativeEmbedding.
    """

    def __init__(self, edge_types: int, query_depth: int, intra_depth: int = 1, **options: Any) -> None:
        check_sizes(edge_types=edge_types)
        super().__init__((edge_types,), query_depth, intra_depth, **options)

    def forward(self, edges: Tensor, types: Tensor, size: tuple[int, int, int]) -> Tensor:
        """Return the embeddings E (b, [h,] n, m, k[, u]) of a batch of graphs.

        Memory: b n m k u elements, per head if the embedding has heads.

        Args:
            edges: (3, number of edges) int64. The rows are the index of the example, the query node n and the context
                node m. Edges are directed: list an undirected edge in both directions. The embeddings of several edges
                between the same nodes are summed.
            types: (number of edges,) int64, the type of each edge, from 0 to edge_types - 1.
            size: (b, n, m): number of examples, and number of query and context nodes of the largest graph.

        Raises ValueError naming the invalid argument.
        """
        if isinstance(edges, fx.Proxy):
            return self.fx_call(edges, types, size)
        check_tensors(edges=edges, types=types)
        if edges.shape != (3, *types.shape) or not edges.dtype == types.dtype == torch.int64:
            raise ValueError(
                "edges must have shape (3, edges) and types (edges,), with dtype int64, "
                f"got {tuple(edges.shape)} and {tuple(types.shape)}, {edges.dtype} and {types.dtype}"
            )
        if not isinstance(size, tuple) or len(size) != 3:
            raise ValueError(f"size must be (b, n, m), got {size!r}")
        table = self.table.unsqueeze(0) if self.heads is None else self.table  # (h or 1, types, k[, u])
        # the values of tensors are unknown in torch.compile and on the meta device
        if not torch.compiler.is_compiling() and edges.device.type != "meta":
            sizes = torch.tensor([*size, table.shape[1]], device=edges.device)[:, None]
            indices = torch.cat([edges, types[None]])
            if ((indices < 0) | (indices >= sizes)).any():
                expected = f"indices within size = {size} and types from 0 to {table.shape[1] - 1}"
                raise ValueError(f"edges and types must be {expected}, got an index out of range")
        edge_embeddings = F.embedding(types, table.movedim(1, 0).flatten(1))  # (edges, h k u)
        embeddings = edge_embeddings.new_zeros(*size, edge_embeddings.shape[1])
        embeddings = embeddings.index_put((edges[0], edges[1], edges[2]), edge_embeddings, accumulate=True)
        embeddings = embeddings.unflatten(-1, (table.shape[0], *table.shape[2:]))  # (b, n, m, h, k[, u])
        return embeddings.squeeze(3) if self.heads is None else embeddings.movedim(3, 1)
