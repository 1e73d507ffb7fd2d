"""Relative embeddings as modules, so that a layer can be given one."""

import torch
from torch import Tensor, nn


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
        intra = () if intra_depth == 1 else (intra_depth,)
        self.table = nn.Parameter(torch.empty(*scope, query_depth, *intra, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table)

    def forward(self) -> Tensor:
        return self.table

    def extra_repr(self) -> str:
        return " x ".join(str(side) for side in self.table.shape)
