"""How the fused kernels divide a problem: sizes fixed at compilation by a table, shapes of tiles by counting steps.

Nothing is timed at run time, so the same problem on the same device is always added up in the same order.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

K = 16  # query depth of a kernel; deeper queries take several launches
MOST_VALUES = 128  # value channels of a launch
ENOUGH_PROGRAMS = 264  # to keep a large device busy: two for each of 132 processors


@dataclass(frozen=True)
class Tiles:
    """Sizes that a kernel is compiled for.

    positions: of a program's tile. rows: of a program, examples times heads, in lambda order examples times value
    channels. step: positions of a step. values: value channels of a program. warps, stages: for the compiler.
    """

    positions: int
    rows: int
    step: int
    values: int
    warps: int
    stages: int


# By kernel, for numbers of 16 bits, the first whose values hold a row of values, or the last, which takes wider rows in
# blocks. All compile without spilling registers, but for 8 bytes in two of them with Triton 3.8;
# tests/ops/position/test_fused_kernels.py checks it.
_ON_HOPPER = {
    "forward_lambda_order": [
        Tiles(16, 128, 32, 16, 8, 3),
        Tiles(16, 128, 32, 32, 8, 3),
        Tiles(16, 128, 32, 64, 8, 3),
        Tiles(8, 256, 32, 128, 8, 3),
    ],
    "forward_query_order": [Tiles(16, 32, 32, 16, 8, 3), Tiles(16, 32, 32, 32, 8, 3), Tiles(8, 32, 32, 64, 8, 3)],
    "queries_gradient": [
        Tiles(16, 32, 32, 16, 8, 3),
        Tiles(16, 32, 32, 32, 8, 3),
        Tiles(8, 32, 32, 64, 8, 3),
        Tiles(8, 16, 32, 128, 4, 3),
    ],
    "values_gradient": [Tiles(32, 32, 16, 16, 8, 2), Tiles(64, 32, 8, 32, 8, 3), Tiles(32, 32, 8, 64, 8, 3)],
    "table_parts": [Tiles(8, 32, 64, 16, 8, 2), Tiles(8, 32, 64, 32, 8, 2), Tiles(8, 32, 32, 64, 8, 2)],
}
# On all others: at most 99 KiB of shared memory, which every device from 8.0 on has.
_ON_OTHERS = {
    "forward_lambda_order": [
        Tiles(8, 128, 32, 16, 8, 2),
        Tiles(8, 128, 32, 32, 8, 2),
        Tiles(8, 128, 32, 64, 8, 2),
        Tiles(8, 128, 32, 128, 8, 2),
    ],
    "forward_query_order": [Tiles(16, 32, 32, 16, 8, 2), Tiles(16, 32, 32, 32, 8, 2), Tiles(8, 32, 32, 64, 8, 2)],
    "queries_gradient": [
        Tiles(16, 32, 32, 16, 8, 2),
        Tiles(16, 32, 32, 32, 8, 2),
        Tiles(8, 16, 32, 64, 4, 2),
        Tiles(8, 16, 32, 128, 4, 2),
    ],
    "values_gradient": [Tiles(32, 32, 16, 16, 8, 2), Tiles(64, 32, 8, 32, 8, 2), Tiles(32, 32, 8, 64, 8, 2)],
    "table_parts": [Tiles(8, 32, 64, 16, 8, 2), Tiles(8, 32, 32, 32, 8, 3), Tiles(8, 32, 32, 64, 8, 2)],
}
# For float32, whose products no tensor core takes without losing digits.
_IN_FLOAT32 = {
    "forward_query_order": [Tiles(8, 16, 16, 16, 4, 2), Tiles(8, 16, 16, 32, 4, 2)],
    "queries_gradient": [
        Tiles(8, 16, 16, 16, 4, 1),
        Tiles(8, 16, 16, 32, 4, 1),
        Tiles(4, 16, 16, 64, 4, 1),
        Tiles(4, 16, 16, 128, 4, 1),
    ],
    "values_gradient": [Tiles(16, 16, 8, 16, 4, 1), Tiles(16, 16, 8, 32, 4, 2)],
    "table_parts": [Tiles(8, 16, 16, 16, 4, 1), Tiles(8, 16, 16, 32, 4, 1)],
}


def tables(architecture: int, itemsize: int) -> dict[str, list[Tiles]]:
    """The tiles of all kernels on a device of a major compute capability, for numbers of so many bytes."""
    if itemsize > 2:
        return _IN_FLOAT32
    return _ON_HOPPER if architecture == 9 else _ON_OTHERS


def tiles_of(
    kernel: str, architecture: int, itemsize: int, batch: int, heads: int, positions: int, value_depth: int
) -> Tiles:
    """The sizes for a kernel: half the rows with half the warps where a batch fills no more, or programs are few."""
    choices = tables(architecture, itemsize)[kernel]
    tiles = next((tiles for tiles in choices if value_depth <= tiles.values), choices[-1])
    rows = batch * (tiles.values if kernel == "forward_lambda_order" else power_of_two(heads))
    programs = -(-positions // tiles.positions) * -(-rows // tiles.rows) * -(-value_depth // tiles.values)
    return halved(kernel, tiles) if 2 * rows <= tiles.rows or programs < ENOUGH_PROGRAMS else tiles


def halved(kernel: str, tiles: Tiles) -> Tiles:
    """Half the rows with half the warps, where there are 8 and half the rows hold what they must."""
    fewest = tiles.values if kernel == "forward_lambda_order" else 16
    return replace(tiles, rows=tiles.rows // 2, warps=4) if tiles.warps == 8 and tiles.rows > fewest else tiles


def prefers_lambda_order(architecture: int, itemsize: int, batch: int, heads: int, value_depth: int) -> bool:
    """Whether the forward pass in lambda order is expected to be faster than in query order.

    By multiply-adds a pair of positions and example, rounded up to what a tensor core takes at a time: 16 rows, and 64
    in lambda order. That is one plain product, which the instructions of Hopper compute at about twice the rate.
    """
    if itemsize > 2:
        return False
    lambda_order = K * max(value_depth, 64 / max(batch, 1))
    query_order = max(power_of_two(heads), 16 / max(batch, 1)) * (K + value_depth)
    return lambda_order <= (2 if architecture == 9 else 1) * query_order


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << (least - 1).bit_length()


@lru_cache(maxsize=1024)
def tile_and_step(
    grid: tuple[int, int], reach: tuple[int, int], positions: int, step: int
) -> tuple[int, int, int, int]:
    """Rows and columns of a tile of `positions`, and of a step of `step`, that need the fewest steps over the grid.

    All four are powers of two. Among equals, the flattest: long rows are read fastest.
    """
    best, fewest = (1, positions, 1, step), None
    for tile_rows in _powers(positions, grid[0]):
        for step_rows in _powers(step, grid[0]):
            tile_columns, step_columns = positions // tile_rows, step // step_rows
            steps = _steps(grid[0], reach[0], tile_rows, step_rows) * _steps(
                grid[1], reach[1], tile_columns, step_columns
            )
            if fewest is None or steps < fewest:
                best, fewest = (tile_rows, tile_columns, step_rows, step_columns), steps
    return best


@lru_cache(maxsize=1024)
def table_step(grid: tuple[int, int], reach: tuple[int, int], columns: int, step: int) -> tuple[int, int]:
    """Offsets between rows, and columns of the context, of a program of `table_parts` that need the fewest steps."""
    best, fewest = (1, step), None
    for step_rows in _powers(step, 2 * reach[0] + 1):
        steps = chunks_of(grid, reach, columns, step // step_rows)
        pairs = 0
        for first in range(-reach[0], reach[0] + 1, step_rows):
            pairs += min(grid[0] - 1, grid[0] - 1 - first) - max(0, 1 - first - step_rows) + 1
        if fewest is None or steps * pairs < fewest:
            best, fewest = (step_rows, step // step_rows), steps * pairs
    return best


def chunks_of(grid: tuple[int, int], reach: tuple[int, int], columns: int, step_columns: int) -> int:
    """How many chunks of step_columns cover the columns that any tile of `columns` queries in a row reaches."""
    return -(-min(grid[1], columns + 2 * reach[1]) // step_columns)


def _powers(most: int, side: int) -> list[int]:
    """Powers of two up to `most`, the last not below the side."""
    return [1 << i for i in range(most.bit_length()) if i == 0 or 1 << (i - 1) < side]


def _steps(side: int, reach: int, tile: int, step: int) -> int:
    """Steps along one axis, over all tiles."""
    total = 0
    for start in range(0, side, tile):
        first, last = max(start - reach, 0), min(start + tile - 1 + reach, side - 1)
        total += -(-(last - first + 1) // step)
    return total
