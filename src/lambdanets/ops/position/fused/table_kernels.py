# mypy: allow-untyped-defs
"""The gradient of the table in Triton, in two kernels: parts, then their sum. Neither adds atomically."""

import triton
import triton.language as tl

from lambdanets.ops.position.fused.forward_kernels import SIZES, window


@triton.jit(do_not_specialize=[*SIZES, "row_groups", "chunks", "split_examples"])
def table_parts(
    g_ptr,  # (b, h, n, v), rows
    q_ptr,  # (b, h, n, k), rows
    v_ptr,  # (b, n, v), rows
    out_ptr,  # (splits, row groups, chunks, column tiles, TILE, STEP, K), contiguous
    g_b_stride,
    g_h_stride,
    g_n_stride,
    q_b_stride,
    q_h_stride,
    q_n_stride,
    v_b_stride,
    v_n_stride,
    value_depth,
    query_depth,
    batch,
    heads,
    height,
    width,
    row_reach,
    column_reach,
    step_rows,
    step_columns,
    row_groups,
    chunks,
    split_examples,
    TILE: tl.constexpr,  # query positions of a row
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,
    STEP: tl.constexpr,  # pairs (offset of rows, column of the context) of a program
    K: tl.constexpr,
    V: tl.constexpr,
):
    """part[x,(dy m),k] = sum over y, b, h of T[x,(dy m),(b h)] q[x,(b h),k].

    T[b,(x h),(dy m)] = sum_v g[b,(x h),v] V[b,(y + dy, m),v], x and m columns.
    A program owns TILE columns of queries, step_rows offsets between rows, step_columns columns of the context and
    split_examples examples, and steps over the rows of queries, groups of EXAMPLES and blocks of V value channels.
    """
    ROWS: tl.constexpr = EXAMPLES * HEADS
    tiles_x = tl.cdiv(width, TILE)
    program = tl.program_id(0)
    tile = program % tiles_x
    chunk = program // tiles_x % chunks
    row_group = program // tiles_x // chunks % row_groups
    split = program // tiles_x // chunks // row_groups
    x0 = tile * TILE
    x_first, x_last = window(x0, TILE, column_reach, width)
    first_offset = row_group * step_rows - row_reach
    # Rows of queries that have a row of the context at one of the offsets.
    y_first = tl.maximum(0, 1 - first_offset - step_rows)
    y_last = tl.minimum(height - 1, height - 1 - first_offset)
    y_count = tl.maximum(y_last - y_first + 1, 0)
    blocks = tl.cdiv(value_depth, V)
    split_first = split * split_examples
    split_end = tl.minimum(split_first + split_examples, batch)
    groups = tl.maximum(tl.cdiv(split_end - split_first, EXAMPLES), 0)
    g_ptr += split_first.to(tl.int64) * g_b_stride
    q_ptr += split_first.to(tl.int64) * q_b_stride
    v_ptr += split_first.to(tl.int64) * v_b_stride

    step = tl.arange(0, STEP)
    y_offset = first_offset + step // step_columns
    x_m = x_first + chunk * step_columns + step % step_columns
    m_mask = (x_m <= x_last) & (y_offset <= row_reach)
    x_m = tl.minimum(x_m, x_last)
    k = tl.arange(0, K)
    v = tl.arange(0, V)
    examples = tl.arange(0, EXAMPLES)
    x_n = x0 + tl.arange(0, TILE)
    rows = tl.arange(0, ROWS)
    example = rows // HEADS
    head = rows % HEADS
    q_offset = (x_n * q_n_stride)[:, None, None] + (example * q_b_stride + head * q_h_stride)[None, :, None]
    q_offset += k[None, None, :]
    q_mask = (x_n < width)[:, None, None] & (head < heads)[None, :, None] & (k < query_depth)[None, None, :]
    g_rows = tl.arange(0, TILE * HEADS)
    g_x = x0 + g_rows // HEADS
    g_head = g_rows % HEADS
    g_offset = (g_x * g_n_stride + g_head * g_h_stride)[None, :, None]
    g_offset += examples[:, None, None] * g_b_stride + v[None, None, :]
    g_mask = ((g_x < width) & (g_head < heads))[None, :, None]
    v_offset = examples[:, None, None] * v_b_stride + v[None, None, :]

    total = tl.zeros((TILE, STEP, K), tl.float32)
    for i in range(groups * y_count * blocks):
        first_value = i % blocks * V
        y = y_first + i // blocks % y_count
        first_example = i // blocks // y_count * EXAMPLES
        in_split = (split_first + first_example + examples < split_end)[:, None, None]
        in_split = in_split & (first_value + v < value_depth)[None, None, :]
        y_m = y + y_offset
        inside = m_mask & (y_m >= 0) & (y_m < height)
        m = tl.minimum(tl.maximum(y_m, 0), height - 1) * width + x_m
        g = tl.load(
            g_ptr + (first_example.to(tl.int64) * g_b_stride + y * width * g_n_stride + first_value) + g_offset,
            mask=g_mask & in_split,
            other=0.0,
        )
        values = tl.load(
            v_ptr
            + (first_example.to(tl.int64) * v_b_stride + first_value)
            + (v_offset + (m * v_n_stride)[None, :, None]),
            mask=in_split & inside[None, :, None],
            other=0.0,
        )
        q = tl.load(
            q_ptr + (first_example.to(tl.int64) * q_b_stride + y * width * q_n_stride) + q_offset,
            mask=q_mask & (split_first + first_example + example < split_end)[None, :, None],
            other=0.0,
        )
        products = tl.dot(g, tl.permute(values, (0, 2, 1)), input_precision="ieee").to(q.dtype)
        products = tl.permute(tl.reshape(products, (EXAMPLES, TILE, HEADS, STEP)), (1, 3, 0, 2))
        total = tl.dot(tl.reshape(products, (TILE, STEP, ROWS)), q, total, input_precision="ieee")

    offset = tl.arange(0, TILE)[:, None] * STEP + step[None, :]
    out_ptr += program.to(tl.int64) * (TILE * STEP * K)
    tl.store(out_ptr + (offset[:, :, None] * K + k[None, None, :]), total)


@triton.jit(do_not_specialize=[*SIZES, "row_groups", "chunks", "splits"])
def sum_table_parts(
    part_ptr,  # as `table_parts` writes them
    out_ptr,  # (2 row_reach + 1, 2 column_reach + 1, k), contiguous
    query_depth,
    width,
    row_reach,
    column_reach,
    step_rows,
    step_columns,
    row_groups,
    chunks,
    splits,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    K: tl.constexpr,
    AT_ONCE: tl.constexpr,  # parts that are read before the first is awaited
):
    """dR[dy,dx,k] = sum over splits, column tiles and the pairs of their columns that lie dx apart."""
    columns = 2 * column_reach + 1
    row = tl.program_id(0) // columns
    column_offset = tl.program_id(0) % columns - column_reach
    tiles_x = tl.cdiv(width, TILE)
    j = tl.arange(0, AT_ONCE * TILE) % TILE
    ahead = tl.arange(0, AT_ONCE * TILE) // TILE
    k = tl.arange(0, K)
    total = tl.zeros((AT_ONCE * TILE, K), tl.float32)
    for first in range(0, splits * tiles_x, AT_ONCE):
        i = first + ahead
        tile = i % tiles_x
        group = i // tiles_x * row_groups + row // step_rows
        x_first, x_last = window(tile * TILE, TILE, column_reach, width)
        column = tile * TILE + j + column_offset - x_first
        # A query beyond the map adds nothing: its gradient counts as zero.
        mask = (i < splits * tiles_x) & (column >= 0) & (column <= x_last - x_first)
        column = tl.minimum(tl.maximum(column, 0), x_last - x_first)
        part = (group * chunks + column // step_columns) * tiles_x + tile
        cell = (part.to(tl.int64) * TILE + j) * STEP + row % step_rows * step_columns + column % step_columns
        total += tl.load(part_ptr + (cell[:, None] * K + k[None, :]), mask=mask[:, None], other=0.0)
    tl.store(
        out_ptr + tl.program_id(0) * query_depth + k,
        tl.sum(total, axis=0).to(out_ptr.dtype.element_ty),
        mask=k < query_depth,
    )
