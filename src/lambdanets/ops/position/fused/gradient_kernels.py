# mypy: allow-untyped-defs
"""The gradients of the fused position interaction in Triton: nothing saved but the inputs, no atomic additions.

Each number of a result is written by one program, which adds in a fixed order; the table's gradient comes as parts,
one a split and tile, which `sum_table_parts` adds in a fixed order. Tiles, steps and table as in `forward_kernels`;
g is the gradient of y.
"""

import triton
import triton.language as tl

from lambdanets.ops.position.fused.forward_kernels import SIZES, place, window


@triton.jit(do_not_specialize=SIZES)
def queries_gradient(
    g_ptr,  # (b, h, n, v), rows
    table_ptr,
    v_ptr,  # (b, n, v), rows
    out_ptr,  # (b, h, n, k), contiguous
    g_b_stride,
    g_h_stride,
    g_n_stride,
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
    tile_rows,
    tile_columns,
    step_rows,
    step_columns,
    TILE: tl.constexpr,  # query positions of a program
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,
    STEP: tl.constexpr,  # context positions of a step
    K: tl.constexpr,
    V: tl.constexpr,
):
    """dq[n,(b h),k] = sum_m T[n,(b h),m] E[n,m,k] with T[b,(n h),m] = g[b,(n h),v] V[b,v,m]."""
    tiles_x = tl.cdiv(width, tile_columns)
    tiles = tl.cdiv(height, tile_rows) * tiles_x
    program = tl.program_id(0)
    tile = program % tiles
    first_example = program // tiles * EXAMPLES
    y0 = tile // tiles_x * tile_rows
    x0 = tile % tiles_x * tile_columns
    g_ptr += first_example.to(tl.int64) * g_b_stride
    v_ptr += first_example.to(tl.int64) * v_b_stride
    out_ptr += first_example.to(tl.int64) * (heads * height * width * query_depth)

    examples = tl.arange(0, EXAMPLES)
    in_batch = first_example + examples < batch
    v = tl.arange(0, V)
    k = tl.arange(0, K)
    rows = tl.arange(0, TILE * HEADS)
    y_n = y0 + rows // HEADS // tile_columns
    x_n = x0 + rows // HEADS % tile_columns
    head = rows % HEADS
    row_offset = head * g_h_stride + (y_n * width + x_n) * g_n_stride
    row_mask = (y_n < height) & (x_n < width) & (head < heads)
    g = tl.load(
        g_ptr + (examples[:, None, None] * g_b_stride + row_offset[None, :, None] + v[None, None, :]),
        mask=in_batch[:, None, None] & row_mask[None, :, None] & (v < value_depth)[None, None, :],
        other=0.0,
    )

    n = tl.arange(0, TILE)
    m = tl.arange(0, STEP)
    y_n = y0 + n // tile_columns
    x_n = x0 + n % tile_columns
    y_first, y_last = window(y0, tile_rows, row_reach, height)
    x_first, x_last = window(x0, tile_columns, column_reach, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    table_width = 2 * (column_reach + tile_columns) - 1
    of_query = (row_reach + tile_rows - 1 - y_n) * table_width + column_reach + tile_columns - 1 - x_n
    e_offset = of_query[:, None, None] * K + k[None, None, :]
    v_offset = examples[:, None, None] * v_b_stride + v[None, None, :]
    v_mask = in_batch[:, None, None] & (v < value_depth)[None, None, :]

    total = tl.zeros((TILE, EXAMPLES * HEADS, K), tl.float32)
    for step in range(steps_x * steps_y):
        y_m, x_m, inside = place(m, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset + ((y_m * table_width + x_m) * K)[None, :, None]))
        values = tl.load(
            v_ptr + (v_offset + ((y_m * width + x_m) * v_n_stride)[None, :, None]),
            mask=v_mask & inside[None, :, None],
            other=0.0,
        )
        products = tl.dot(g, tl.permute(values, (0, 2, 1)), input_precision="ieee").to(e.dtype)
        products = tl.permute(tl.reshape(products, (EXAMPLES, TILE, HEADS, STEP)), (1, 0, 2, 3))
        total = tl.dot(tl.reshape(products, (TILE, EXAMPLES * HEADS, STEP)), e, total, input_precision="ieee")

    rows = tl.arange(0, EXAMPLES * HEADS)
    example = rows // HEADS
    head = rows % HEADS
    position = (head * (height * width))[None, :] + (y_n * width + x_n)[:, None]
    offset = (example * (heads * height * width))[None, :] + position
    mask = ((y_n < height) & (x_n < width))[:, None] & ((first_example + example < batch) & (head < heads))[None, :]
    tl.store(
        out_ptr + (offset[:, :, None] * query_depth + k[None, None, :]),
        total.to(out_ptr.dtype.element_ty),
        mask=mask[:, :, None] & (k < query_depth)[None, None, :],
    )


@triton.jit(do_not_specialize=SIZES)
def values_gradient(
    g_ptr,  # (b, h, n, v), rows
    q_ptr,  # (b, h, n, k), rows
    table_ptr,
    out_ptr,  # (b, n, v), contiguous
    g_b_stride,
    g_h_stride,
    g_n_stride,
    q_b_stride,
    q_h_stride,
    q_n_stride,
    value_depth,
    query_depth,
    batch,
    heads,
    height,
    width,
    row_reach,
    column_reach,
    tile_rows,
    tile_columns,
    step_rows,
    step_columns,
    TILE: tl.constexpr,  # context positions of a program
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,
    STEP: tl.constexpr,  # query positions of a step
    K: tl.constexpr,
    V: tl.constexpr,
):
    """dV[b,m,v] = sum_(n h) S[b,m,(n h)] g[b,(n h),v] with logits S[n,m,(b h)] = E[n,m,k] q[n,k,(b h)]."""
    ROWS: tl.constexpr = EXAMPLES * HEADS
    tiles_x = tl.cdiv(width, tile_columns)
    tiles = tl.cdiv(height, tile_rows) * tiles_x
    blocks = tl.cdiv(value_depth, V)
    program = tl.program_id(0)
    first_value = program % blocks * V
    tile = program // blocks % tiles
    first_example = program // blocks // tiles * EXAMPLES
    y0 = tile // tiles_x * tile_rows
    x0 = tile % tiles_x * tile_columns
    g_ptr += first_example.to(tl.int64) * g_b_stride
    q_ptr += first_example.to(tl.int64) * q_b_stride
    out_ptr += first_example.to(tl.int64) * (height * width * value_depth)

    m = tl.arange(0, TILE)
    y_m = y0 + m // tile_columns
    x_m = x0 + m % tile_columns
    k = tl.arange(0, K)
    n = tl.arange(0, STEP)
    y_first, y_last = window(y0, tile_rows, row_reach, height)
    x_first, x_last = window(x0, tile_columns, column_reach, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    table_width = 2 * (column_reach + tile_columns) - 1
    of_key = (row_reach + tile_rows - 1 + y_m) * table_width + column_reach + tile_columns - 1 + x_m
    e_offset = of_key[None, :, None] * K + k[None, None, :]
    rows = tl.arange(0, ROWS)
    example = rows // HEADS
    head = rows % HEADS
    q_offset = (example * q_b_stride + head * q_h_stride)[None, None, :] + k[None, :, None]
    q_mask = ((first_example + example < batch) & (head < heads))[None, None, :] & (k < query_depth)[None, :, None]
    examples = tl.arange(0, EXAMPLES)
    v = first_value + tl.arange(0, V)
    rows = tl.arange(0, STEP * HEADS)
    g_head = rows % HEADS
    g_offset = examples[:, None, None] * g_b_stride + (g_head * g_h_stride)[None, :, None] + v[None, None, :]
    out_mask = (first_example + examples < batch)[:, None, None] & (v < value_depth)[None, None, :]
    g_mask = out_mask & (g_head < heads)[None, :, None]

    total = tl.zeros((EXAMPLES, TILE, V), tl.float32)
    for step in range(steps_x * steps_y):
        y_n, x_n, inside = place(n, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset - ((y_n * table_width + x_n) * K)[:, None, None]))
        q = tl.load(
            q_ptr + (q_offset + ((y_n * width + x_n) * q_n_stride)[:, None, None]),
            mask=q_mask & inside[:, None, None],
            other=0.0,
        )
        # The same positions, each once a head.
        y_n, x_n, inside = place(
            rows // HEADS, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns
        )
        g = tl.load(
            g_ptr + (g_offset + ((y_n * width + x_n) * g_n_stride)[None, :, None]),
            mask=g_mask & inside[None, :, None],
            other=0.0,
        )
        logits = tl.dot(e, q, input_precision="ieee").to(g.dtype)
        logits = tl.permute(tl.reshape(logits, (STEP, TILE, EXAMPLES, HEADS)), (2, 1, 0, 3))
        total = tl.dot(tl.reshape(logits, (EXAMPLES, TILE, STEP * HEADS)), g, total, input_precision="ieee")

    offset = examples[:, None, None] * (height * width) + (y_m * width + x_m)[None, :, None]
    tl.store(
        out_ptr + (offset * value_depth + v[None, None, :]),
        total.to(out_ptr.dtype.element_ty),
        mask=out_mask & ((y_m < height) & (x_m < width))[None, :, None],
    )
