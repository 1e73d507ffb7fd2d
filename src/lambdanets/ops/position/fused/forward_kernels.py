# mypy: allow-untyped-defs
"""The fused forward kernels in Triton, which load embeddings of pairs from the table and keep lambdas in registers.

A program computes a tile of tile_rows x tile_columns query positions for several examples. It loops over the context
positions in the scope of the tile, step_rows x step_columns per step. The table is zero-padded by the size of a tile
(`launches`), so pairs outside the scope of a query need no mask. Positions outside the map and examples outside the
batch are masked, and the indices of their embeddings are clamped to the table, because 0 * NaN is NaN.

Strides and depths are in vectors of VEC elements (16 bytes), so that the compiler knows that loads are aligned. Offsets
into tensors have 64 bits. ops/position/README.md defines the letters and derives the index of a pair.
"""

import triton
import triton.language as tl

# Triton does not specialize on these, so new values do not trigger a compilation.
SIZES = [
    "value_depth",
    "query_depth",
    "batch",
    "heads",
    "height",
    "width",
    "row_radius",
    "column_radius",
    "tile_rows",
    "tile_columns",
    "step_rows",
    "step_columns",
]
STRIDES = [f"{tensor}_{axis}_stride" for tensor in "qvcygo" for axis in "bhnk"]


@triton.jit
def offset64(index, stride, VEC: tl.constexpr):
    """Return index * stride in elements as int64; the stride is in vectors of VEC elements."""
    return index.to(tl.int64) * stride * VEC


@triton.jit
def program_tile(program, blocks, height, width, tile_rows, tile_columns):
    """Return the block of value channels, the first row and column of the tile, and the group of examples."""
    tiles_x = tl.cdiv(width, tile_columns)
    tiles = tl.cdiv(height, tile_rows) * tiles_x
    tile = program // blocks % tiles
    return program % blocks, tile // tiles_x * tile_rows, tile % tiles_x * tile_columns, program // blocks // tiles


@triton.jit
def window_bounds(start, tile, radius, side):
    """Return the first and last position along an axis within the radius of a tile that starts at `start`."""
    return tl.maximum(start - radius, 0), tl.minimum(start + tile - 1 + radius, side - 1)


@triton.jit
def step_positions(i, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns):
    """Return rows and columns of the positions i of a step, clamped to the window, and whether they are inside it."""
    y = y_first + (step // steps_x) * step_rows + i // step_columns
    x = x_first + (step % steps_x) * step_columns + i % step_columns
    return tl.minimum(y, y_last), tl.minimum(x, x_last), (y <= y_last) & (x <= x_last)


@triton.jit(do_not_specialize=SIZES + STRIDES)
def forward_query_order(
    q_ptr,  # (b, h, n, k), aligned rows
    table_ptr,  # padded table, (.., .., K)
    v_ptr,  # (b, n, v), aligned rows
    c_ptr,  # (b, k, v), aligned rows
    y_ptr,  # (b, h, n, v), aligned rows
    q_b_stride,
    q_h_stride,
    q_n_stride,
    v_b_stride,
    v_n_stride,
    c_b_stride,
    c_k_stride,
    y_b_stride,
    y_h_stride,
    y_n_stride,
    value_depth,
    query_depth,
    batch,
    heads,
    height,
    width,
    row_radius,
    column_radius,
    tile_rows,
    tile_columns,
    step_rows,
    step_columns,
    TILE: tl.constexpr,  # query positions of a program
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,  # heads, rounded up to a power of two
    STEP: tl.constexpr,  # context positions of a step
    K: tl.constexpr,
    V: tl.constexpr,
    VEC: tl.constexpr,  # elements per vectorized load
    CONTENT: tl.constexpr,  # whether there is a content lambda
):
    """Compute y[b,(n h),v] = q c + sum_m S[b,(n h),m] V[b,m,v] with logits S[n,(b h),m] = q[n,(b h),k] E[n,k,m]."""
    ROWS: tl.constexpr = EXAMPLES * HEADS
    value_depth *= VEC
    query_depth *= VEC
    blocks = tl.cdiv(value_depth, V)
    block, y0, x0, group = program_tile(tl.program_id(0), blocks, height, width, tile_rows, tile_columns)
    first_example = group * EXAMPLES

    n = tl.arange(0, TILE)
    y_n = y0 + n // tile_columns
    x_n = x0 + n % tile_columns
    in_grid = (y_n < height) & (x_n < width)
    rows = tl.arange(0, ROWS)
    example = first_example + rows // HEADS
    head = rows % HEADS
    k = tl.arange(0, K)
    m = tl.arange(0, STEP)
    examples = first_example + tl.arange(0, EXAMPLES)
    in_batch = (examples < batch)[:, None, None]
    v = block * V + tl.arange(0, V)
    in_depth = (v < value_depth)[None, None, :]

    q_offset = (offset64(example, q_b_stride, VEC) + offset64(head, q_h_stride, VEC))[None, :, None] + k[None, None, :]
    q_mask = ((example < batch) & (head < heads))[None, :, None] & (k < query_depth)[None, None, :]
    q = tl.load(
        q_ptr + (q_offset + offset64(y_n * width + x_n, q_n_stride, VEC)[:, None, None]),
        mask=q_mask & in_grid[:, None, None],
        other=0.0,
    )

    y_first, y_last = window_bounds(y0, tile_rows, row_radius, height)
    x_first, x_last = window_bounds(x0, tile_columns, column_radius, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    # Query part of the index of each pair's embedding; each step adds the key part.
    table_width = 2 * (column_radius + tile_columns) - 1
    query_index = (row_radius + tile_rows - 1 - y_n) * table_width + column_radius + tile_columns - 1 - x_n
    e_offset = query_index[:, None, None] * K + k[None, :, None]
    v_rows = v_ptr + (offset64(examples, v_b_stride, VEC)[:, None, None] + v[None, None, :])

    total = tl.zeros((EXAMPLES, TILE * HEADS, V), tl.float32)
    if CONTENT:
        c_offset = offset64(examples, c_b_stride, VEC)[:, None, None] + offset64(k, c_k_stride, VEC)[None, :, None]
        c_mask = in_batch & (k < query_depth)[None, :, None] & in_depth
        c = tl.load(c_ptr + (c_offset + v[None, None, :]), mask=c_mask, other=0.0)
        q_by_example = tl.permute(tl.reshape(q, (TILE, EXAMPLES, HEADS, K)), (1, 0, 2, 3))
        total = tl.dot(tl.reshape(q_by_example, (EXAMPLES, TILE * HEADS, K)), c, total, input_precision="ieee")
    for step in range(steps_x * steps_y):
        y_m, x_m, inside = step_positions(m, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset + ((y_m * table_width + x_m) * K)[None, None, :]))
        values = tl.load(
            v_rows + offset64(y_m * width + x_m, v_n_stride, VEC)[None, :, None],
            mask=in_batch & in_depth & inside[None, :, None],
            other=0.0,
        )
        logits = tl.dot(q, e, input_precision="ieee").to(values.dtype)
        logits = tl.permute(tl.reshape(logits, (TILE, EXAMPLES, HEADS, STEP)), (1, 0, 2, 3))
        total = tl.dot(tl.reshape(logits, (EXAMPLES, TILE * HEADS, STEP)), values, total, input_precision="ieee")

    rows = tl.arange(0, TILE * HEADS)
    head = rows % HEADS
    y_n = y0 + rows // HEADS // tile_columns
    x_n = x0 + rows // HEADS % tile_columns
    row_offset = offset64(head, y_h_stride, VEC) + offset64(y_n * width + x_n, y_n_stride, VEC)
    y_offset = offset64(examples, y_b_stride, VEC)[:, None, None] + row_offset[None, :, None] + v[None, None, :]
    y_mask = in_batch & in_depth & ((y_n < height) & (x_n < width) & (head < heads))[None, :, None]
    tl.store(y_ptr + y_offset, total.to(y_ptr.dtype.element_ty), mask=y_mask)


@triton.jit
def sum_lambdas(
    table_ptr,
    v_ptr,
    v_b_stride,
    v_n_stride,
    value_depth,
    batch,
    height,
    width,
    row_radius,
    column_radius,
    tile_rows,
    tile_columns,
    step_rows,
    step_columns,
    y0,
    x0,
    first_example,
    first_value,
    TILE: tl.constexpr,
    EXAMPLES: tl.constexpr,
    STEP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    VEC: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Return lambda[(b v),(n k)] = sum_m V[(b v),m] E[m,(n k)] of a tile, or its transpose."""
    columns = tl.arange(0, TILE * K)
    y_n = y0 + columns // K // tile_columns
    x_n = x0 + columns // K % tile_columns
    m = tl.arange(0, STEP)
    rows = tl.arange(0, EXAMPLES * V)
    y_first, y_last = window_bounds(y0, tile_rows, row_radius, height)
    x_first, x_last = window_bounds(x0, tile_columns, column_radius, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    table_width = 2 * (column_radius + tile_columns) - 1
    query_index = (row_radius + tile_rows - 1 - y_n) * table_width + column_radius + tile_columns - 1 - x_n
    e_offset = (query_index * K + columns % K)[None, :]
    v_rows = v_ptr + (offset64(first_example + rows // V, v_b_stride, VEC) + first_value + rows % V)[:, None]
    v_mask = ((first_example + rows // V < batch) & (first_value + rows % V < value_depth))[:, None]
    if TRANSPOSED:
        lambdas = tl.zeros((TILE * K, EXAMPLES * V), tl.float32)
    else:
        lambdas = tl.zeros((EXAMPLES * V, TILE * K), tl.float32)
    for step in range(steps_x * steps_y):
        y_m, x_m, inside = step_positions(m, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset + ((y_m * table_width + x_m) * K)[:, None]))
        values = tl.load(
            v_rows + offset64(y_m * width + x_m, v_n_stride, VEC)[None, :],
            mask=v_mask & inside[None, :],
            other=0.0,
        )
        if TRANSPOSED:
            lambdas = tl.dot(tl.trans(e), tl.trans(values), lambdas, input_precision="ieee")
        else:
            lambdas = tl.dot(values, e, lambdas, input_precision="ieee")
    return lambdas


@triton.jit(do_not_specialize=SIZES + STRIDES)
def forward_lambda_order(
    q_ptr,  # (b, h, n, k), aligned rows
    table_ptr,  # padded table, (.., .., K)
    v_ptr,  # (b, n, v), aligned rows
    c_ptr,  # (b, k, v), aligned rows
    y_ptr,  # (b, h, n, v), aligned rows
    q_b_stride,
    q_h_stride,
    q_n_stride,
    v_b_stride,
    v_n_stride,
    c_b_stride,
    c_k_stride,
    y_b_stride,
    y_h_stride,
    y_n_stride,
    value_depth,
    query_depth,
    batch,
    heads,
    height,
    width,
    row_radius,
    column_radius,
    tile_rows,
    tile_columns,
    step_rows,
    step_columns,
    TILE: tl.constexpr,
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,  # not rounded up
    STEP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    VEC: tl.constexpr,
    CONTENT: tl.constexpr,
):
    """Compute lambda[(b v),(n k)] = c + sum_m V[(b v),m] E[m,(n k)] in registers, then y[b,h,n,v] = sum_k q lambda.

    (n k) are the columns of the product: a thread then has several k of a position, and the final sum over k needs
    little communication between threads.
    """
    value_depth *= VEC
    query_depth *= VEC
    blocks = tl.cdiv(value_depth, V)
    block, y0, x0, group = program_tile(tl.program_id(0), blocks, height, width, tile_rows, tile_columns)
    first_example = group * EXAMPLES
    first_value = block * V

    lambdas = sum_lambdas(
        table_ptr,
        v_ptr,
        v_b_stride,
        v_n_stride,
        value_depth,
        batch,
        height,
        width,
        row_radius,
        column_radius,
        tile_rows,
        tile_columns,
        step_rows,
        step_columns,
        y0,
        x0,
        first_example,
        first_value,
        TILE,
        EXAMPLES,
        STEP,
        K,
        V,
        VEC,
        False,
    )
    lambdas = tl.reshape(lambdas, (EXAMPLES, V, TILE, K))
    examples = first_example + tl.arange(0, EXAMPLES)
    v = first_value + tl.arange(0, V)
    n = tl.arange(0, TILE)
    y_n = y0 + n // tile_columns
    x_n = x0 + n % tile_columns
    k = tl.arange(0, K)
    in_grid = (y_n < height) & (x_n < width)
    in_batch = examples < batch
    if CONTENT:
        c_offset = offset64(examples, c_b_stride, VEC)[:, None, None] + offset64(k, c_k_stride, VEC)[None, None, :]
        c_mask = in_batch[:, None, None] & (v < value_depth)[None, :, None] & (k < query_depth)[None, None, :]
        c = tl.load(c_ptr + (c_offset + v[None, :, None]), mask=c_mask, other=0.0).to(tl.float32)
        lambdas += c[:, :, None, :]
    position = y_n * width + x_n
    q_offset = offset64(examples, q_b_stride, VEC)[:, None, None] + offset64(position, q_n_stride, VEC)[None, :, None]
    q_offset += k[None, None, :]
    q_mask = in_batch[:, None, None] & in_grid[None, :, None] & (k < query_depth)[None, None, :]
    y_offset = offset64(examples, y_b_stride, VEC)[:, None, None] + offset64(position, y_n_stride, VEC)[None, None, :]
    y_offset += v[None, :, None]
    y_mask = in_batch[:, None, None] & (v < value_depth)[None, :, None] & in_grid[None, None, :]
    for head in tl.static_range(HEADS):
        q = tl.load(q_ptr + head * VEC * q_h_stride.to(tl.int64) + q_offset, mask=q_mask, other=0.0).to(tl.float32)
        y = tl.sum(lambdas * q[:, None, :, :], axis=3)
        y_head_ptr = y_ptr + head * VEC * y_h_stride.to(tl.int64)
        tl.store(y_head_ptr + y_offset, y.to(y_ptr.dtype.element_ty), mask=y_mask)
