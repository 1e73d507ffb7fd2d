"""How the fused kernels divide a problem: sizes fixed at compilation by a table, shapes of tiles by counting steps.

Nothing is timed at run time, so the same problem on the same device is always added up in the same order.
"""

from dataclasses import dataclass
from functools import lru_cache

K = 16  # query depth of a kernel; deeper queries take several launches
MOST_VALUES = 128  # value channels of a launch


@dataclass(frozen=True)
class Tiles:
    """Sizes that a kernel is compiled for.

    positions: of a program's tile. rows: examples times heads (rounded up to a power of two) of a program.
    step: positions of a step. values: value channels of a program, at most. warps, stages: for the compiler.
    """

    positions: int
    rows: int
    step: int
    values: int
    warps: int
    stages: int


# Keyed by kernel, then by the width of a value row rounded up to a power of two: the last that is given serves wider
# rows, in blocks. All fit into registers without spilling, those of 8 into the shared memory of any device from 8.0 on.
_HALF: dict[int, dict[str, dict[int, Tiles]]] = {
    8: {
        "forward_query_order": {16: Tiles(16, 32, 32, 16, 8, 2), 32: Tiles(16, 32, 32, 32, 8, 2), 64: Tiles(8, 32, 32, 64, 8, 2)},
        "queries_gradient": {16: Tiles(16, 32, 32, 16, 8, 2), 32: Tiles(16, 32, 32, 32, 8, 2), 64: Tiles(8, 32, 32, 64, 8, 2), 128: Tiles(8, 16, 32, 128, 8, 2)},
        "values_gradient": {16: Tiles(64, 32, 8, 16, 8, 2), 32: Tiles(64, 32, 8, 32, 8, 2), 64: Tiles(64, 16, 8, 64, 8, 2)},
        "table_parts": {16: Tiles(8, 32, 64, 16, 8, 2), 32: Tiles(8, 32, 64, 32, 8, 2), 64: Tiles(8, 16, 64, 64, 8, 2)},
    },
    9: {
        "forward_query_order": {16: Tiles(16, 32, 32, 16, 8, 3), 32: Tiles(16, 32, 32, 32, 8, 3), 64: Tiles(8, 32, 32, 64, 8, 3)},
        "queries_gradient": {16: Tiles(16, 32, 32, 16, 8, 3), 32: Tiles(16, 32, 32, 32, 8, 3), 64: Tiles(8, 32, 32, 64, 8, 3), 128: Tiles(8, 16, 32, 128, 8, 3)},
        "values_gradient": {16: Tiles(64, 32, 8, 16, 8, 3), 32: Tiles(64, 32, 8, 32, 8, 3), 64: Tiles(64, 16, 8, 64, 8, 3)},
        "table_parts": {16: Tiles(8, 32, 64, 16, 8, 2), 32: Tiles(8, 32, 64, 32, 8, 2), 64: Tiles(8, 16, 64, 64, 8, 2)},
    },
}
# float32 has no tensor-core product that keeps its digits: small tiles, and registers decide.
_FULL: dict[str, dict[int, Tiles]] = {
    "forward_query_order": {16: Tiles(8, 16, 16, 16, 4, 1), 32: Tiles(8, 16, 16, 32, 4, 1)},
    "queries_gradient": {16: Tiles(8, 16, 16, 16, 4, 1), 32: Tiles(8, 16, 16, 32, 4, 1), 64: Tiles(4, 16, 16, 64, 4, 1), 128: Tiles(4, 16, 16, 128, 4, 1)},
    "values_gradient": {16: Tiles(16, 16, 8, 16, 4, 1), 32: Tiles(16, 16, 8, 32, 4, 1)},
    "table_parts": {16: Tiles(8, 16, 16, 16, 4, 1), 32: Tiles(8, 16, 16, 32, 4, 1)},
}


def tiles_of(kernel: str, architecture: int, value_depth: int, itemsize: int) -> Tiles:
    """The sizes for a kernel on a device of a major compute capability, for values of a depth and bytes a number."""
    of_depth = _FULL[kernel] if itemsize > 2 else _HALF[9 if architecture == 9 else 8][kernel]
    return next((tiles for depth, tiles in of_depth.items() if value_depth <= depth), list(of_depth.values())[-1])


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << (least - 1).bit_length()


@lru_cache(maxsize=1024)
def tile_and_step(grid: tuple[int, int], reach: tuple[int, int], positions: int, step: int) -> tuple[int, int, int, int]:
    """Rows and columns of a tile of `positions`, and of a step of `step`, that need the fewest steps over the grid.

    All four are powers of two. Among equals, the flattest: long rows are read fastest.
    """
    best, fewest = (1, positions, 1, step), None
    for tile_rows in _powers(positions, grid[0]):
        for step_rows in _powers(step, grid[0]):
            tile_columns, step_columns = positions // tile_rows, step // step_rows
            steps = _steps(grid[0], reach[0], tile_rows, step_rows) * _steps(grid[1], reach[1], tile_columns, step_columns)
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
