"""Blocks of embeddings: what a tile of query positions sees of its window of context positions, from the table.

The embedding of a pair depends on its offset alone, so a block depends on the shapes of tile and window, and one block
serves every tile. Along an axis E[t, w] = R[first + w - t], for tile position t and window position w.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Axis:
    """One axis of a block: sides of tile and window, and which entry of the table t = 0 has for w = 0.

    That and other entries may lie outside of the table; they count as zero.
    """

    tile: int
    window: int
    first: int

    def padding(self, side: int) -> tuple[int, int]:
        """Entries to add before and after a table of this side, negative to crop, so that each offset has its own."""
        before = self.tile - 1 - self.first
        return before, self.tile + self.window - 1 - side - before


def make_block(table: Tensor, axes: Sequence[Axis]) -> Tensor:
    """R (r_1..r_D, k, u) to E (T_1..T_D, k, w_1..w_D, u), contiguous. Cost: copies, no arithmetic."""
    last = len(axes) - 1
    padding = [axis.padding(side) for axis, side in zip(axes, table.shape, strict=False)]
    offsets = F.pad(table, [0, 0, 0, 0, *(entries for pair in reversed(padding) for entries in pair)])
    for i in range(last, 0, -1):
        # window i starts at offset i, and so belongs to tile position T - 1 - i
        offsets = offsets.unfold(i, axes[i].window, 1).flip(i)
    # now (offsets of axis 1, T_2..T_D, k, u, w_D..w_2)
    offsets = offsets.permute(*range(1, last + 2), 0, *range(2 * last + 2, last + 2, -1), last + 2)
    tile, window = axes[0].tile, axes[0].window
    made = offsets.new_empty(tile, *offsets.shape[: last + 1], window, *offsets.shape[last + 2 :])
    for t in range(tile):
        made[t].copy_(offsets.narrow(last + 1, tile - 1 - t, window))
    return made


def sum_of_block(gradient: Tensor, axes: Sequence[Axis], sides: Sequence[int]) -> Tensor:
    """The adjoint of `make_block` for a table of these sides: the pairs of each offset summed in a fixed order."""
    at = len(axes)  # the place of the window, once the first axis of the tile is gone
    for axis, side in zip(axes, sides, strict=True):
        shape = list(gradient.shape[1:])
        shape[at] = axis.tile + axis.window - 1
        offsets = gradient.new_zeros(shape)
        for t in range(axis.tile):
            offsets.narrow(at, axis.tile - 1 - t, axis.window).add_(gradient[t])
        before, after = axis.padding(side)
        gradient = F.pad(offsets.movedim(at, -1), [-before, -after]).movedim(-1, at)
    return gradient.movedim(0, -2)
