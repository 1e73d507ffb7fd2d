"""Relative embeddings as modules, so that a layer can be given one."""

import torch
from torch import Tensor, nn

from lambdanets.ops import resize_table
from lambdanets.ops.geometry import check_resize


class RelativeEmbedding(nn.Module):
    """One embedding per relative offset: the table R (r_1..r_D, k[, u]) of Sec. 3.3, drawn from N(0, 1) (Sec. F.2).

    scope: the odd sides r_1..r_D. The same table serves any grid; see `lambdanets.position_interaction`.
    """

    def __init__(
        self,
        scope: tuple[int, ...],
        query_depth: int,
        intra_depth: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dimensions = len(scope)
        intra = () if intra_depth == 1 else (intra_depth,)
        self.table = nn.Parameter(torch.empty(*scope, query_depth, *intra, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table)

    def resize(self, scope: tuple[int, ...], keep_sum: bool = True) -> None:
        """Interpolate the table to another scope in place, to go on at another resolution; see `resize_table`.

        The parameter is a new one, with the dtype, device and requires_grad of the old: an optimizer made before still
        holds the old one and must be made anew. Raises ValueError unless scope has D odd sides.
        """
        check_resize(self.table, scope, "scope")
        if len(scope) != self.dimensions:
            raise ValueError(f"scope must have as many sides as before, {self.dimensions}, got {scope}")
        resized = resize_table(self.table.detach(), scope, keep_sum=keep_sum)
        self.table = nn.Parameter(resized, requires_grad=self.table.requires_grad)

    def forward(self) -> Tensor:
        return self.table

    def extra_repr(self) -> str:
        return " x ".join(str(side) for side in self.table.shape)
