# mypy: allow-untyped-defs
"""The fused forward kernels in Triton: embeddings are read from the table pair by pair, lambdas stay in registers.

A program owns a tile of tile_rows x tile_columns query positions for some examples, and steps over the context
positions that the tile's scope reaches, step_rows x step_columns at a time. The table comes with zeros around it, as
wide as a tile (`launches`), so pairs beyond a query's scope need no mask. Only what lies beyond the map or the
batch does: it counts as zero, and the index of its embeddings is held inside the table, for 0 times NaN is NaN.
"""

import triton
import triton.language as tl

# A new value of one of these is no new kernel: strides and depths alone decide how memory is read.
SIZES = [
    "batch",
    "heads",
    "height",
    "width",
    "row_reach",
    "column_reach",
    "tile_rows",
    "tile_columns",
    "step_rows",
    "step_columns",
]


@triton.jit
def window(start, tile, reach, side):
    """First and last position of an axis that a tile starting at `start` reaches."""
    return tl.maximum(start - reach, 0), tl.minimum(start + tile - 1 + reach, side - 1)


@triton.jit
def place(i, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns):
    """Rows and columns of the positions i of a step, held inside the window, and whether they belong to it."""
    y = y_first + (step // steps_x) * step_rows + i // step_columns
    x = x_first + (step % steps_x) * step_columns + i % step_columns
    return tl.minimum(y, y_last), tl.minimum(x, x_last), (y <= y_last) & (x <= x_last)


@triton.jit(do_not_specialize=SIZES)
def forward_query_order(
    q_ptr,  # (b, h, n, k), any strides
    table_ptr,  # padded table, (.., .., K)
    v_ptr,  # (b, n, v), rows
    y_ptr,  # (b, h, n, v), contiguous
    q_b_stride,
    q_h_stride,
    q_n_stride,
    q_k_stride,
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
    HEADS: tl.constexpr,  # heads, up to a power of two
    STEP: tl.constexpr,  # context positions of a step
    K: tl.constexpr,
    V: tl.constexpr,
):
    """y[b,(n h),v] = sum_m S[b,(n h),m] V[b,m,v] with logits S[n,(b h),m] = q[n,(b h),k] E[n,k,m]."""
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
    q_ptr += first_example.to(tl.int64) * q_b_stride
    v_ptr += first_example.to(tl.int64) * v_b_stride
    y_ptr += first_example.to(tl.int64) * (heads * height * width * value_depth)

    n = tl.arange(0, TILE)
    y_n = y0 + n // tile_columns
    x_n = x0 + n % tile_columns
    in_grid = (y_n < height) & (x_n < width)
    rows = tl.arange(0, ROWS)
    example = rows // HEADS
    head = rows % HEADS
    in_batch = (first_example + example < batch) & (head < heads)
    k = tl.arange(0, K)
    m = tl.arange(0, STEP)

    q_offset = (y_n * width + x_n)[:, None, None] * q_n_stride + k[None, None, :] * q_k_stride
    q_offset += (example * q_b_stride + head * q_h_stride)[None, :, None]
    q_mask = in_grid[:, None, None] & in_batch[None, :, None] & (k < query_depth)[None, None, :]
    q = tl.load(q_ptr + q_offset, mask=q_mask, other=0.0)

    y_first, y_last = window(y0, tile_rows, row_reach, height)
    x_first, x_last = window(x0, tile_columns, column_reach, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    # Embedding of a pair: the part of its index that the query has, and k; the key's part comes in each step.
    table_width = 2 * (column_reach + tile_columns) - 1
    of_query = (row_reach + tile_rows - 1 - y_n) * table_width + column_reach + tile_columns - 1 - x_n
    e_offset = of_query[:, None, None] * K + k[None, :, None]
    examples = tl.arange(0, EXAMPLES)
    v = first_value + tl.arange(0, V)
    v_offset = examples[:, None, None] * v_b_stride + v[None, None, :]
    v_mask = (first_example + examples < batch)[:, None, None] & (v < value_depth)[None, None, :]

    total = tl.zeros((EXAMPLES, TILE * HEADS, V), tl.float32)
    for step in range(steps_x * steps_y):
        y_m, x_m, inside = place(m, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset + ((y_m * table_width + x_m) * K)[None, None, :]))
        values = tl.load(
            v_ptr + (v_offset + ((y_m * width + x_m) * v_n_stride)[None, :, None]),
            mask=v_mask & inside[None, :, None],
            other=0.0,
        )
        logits = tl.dot(q, e, input_precision="ieee").to(values.dtype)
        logits = tl.permute(tl.reshape(logits, (TILE, EXAMPLES, HEADS, STEP)), (1, 0, 2, 3))
        total = tl.dot(tl.reshape(logits, (EXAMPLES, TILE * HEADS, STEP)), values, total, input_precision="ieee")

    rows = tl.arange(0, TILE * HEADS)
    head = rows % HEADS
    y_n = y0 + rows // HEADS // tile_columns
    x_n = x0 + rows // HEADS % tile_columns
    row_offset = head * (height * width) + y_n * width + x_n
    y_offset = examples[:, None, None] * (heads * height * width * value_depth)
    y_offset += row_offset[None, :, None] * value_depth + v[None, None, :]
    y_mask = v_mask & ((y_n < height) & (x_n < width) & (head < heads))[None, :, None]
    tl.store(y_ptr + y_offset, total.to(y_ptr.dtype.element_ty), mask=y_mask)


@triton.jit(do_not_specialize=SIZES)
def forward_lambda_order(
    q_ptr,  # (b, h, n, k), any strides
    table_ptr,  # padded table, (.., .., K)
    v_ptr,  # (b, n, v), rows
    y_ptr,  # (b, h, n, v), contiguous
    q_b_stride,
    q_h_stride,
    q_n_stride,
    q_k_stride,
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
    TILE: tl.constexpr,
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,  # exactly
    STEP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    """lambda[(b v),(n k)] = sum_m V[(b v),m] E[m,(n k)] in registers, then y[b,h,n,v] = sum_k q[b,h,n,k] lambda.

    (n k) are the columns of the product, so that a thread holds several k of a position and the last sum takes few
    exchanges between threads.
    """
    tiles_x = tl.cdiv(width, tile_columns)
    tiles = tl.cdiv(height, tile_rows) * tiles_x
    blocks = tl.cdiv(value_depth, V)
    program = tl.program_id(0)
    first_value = program % blocks * V
    tile = program // blocks % tiles
    first_example = program // blocks // tiles * EXAMPLES
    y0 = tile // tiles_x * tile_rows
    x0 = tile % tiles_x * tile_columns
    q_ptr += first_example.to(tl.int64) * q_b_stride
    v_ptr += first_example.to(tl.int64) * v_b_stride
    y_ptr += first_example.to(tl.int64) * (heads * height * width * value_depth)

    columns = tl.arange(0, TILE * K)
    y_n = y0 + columns // K // tile_columns
    x_n = x0 + columns // K % tile_columns
    m = tl.arange(0, STEP)
    rows = tl.arange(0, EXAMPLES * V)
    y_first, y_last = window(y0, tile_rows, row_reach, height)
    x_first, x_last = window(x0, tile_columns, column_reach, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    table_width = 2 * (column_reach + tile_columns) - 1
    of_query = (row_reach + tile_rows - 1 - y_n) * table_width + column_reach + tile_columns - 1 - x_n
    e_offset = (of_query * K + columns % K)[None, :]
    v_offset = (rows // V * v_b_stride + first_value + rows % V)[:, None]
    v_mask = ((first_example + rows // V < batch) & (first_value + rows % V < value_depth))[:, None]

    lambdas = tl.zeros((EXAMPLES * V, TILE * K), tl.float32)
    for step in range(steps_x * steps_y):
        y_m, x_m, inside = place(m, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset + ((y_m * table_width + x_m) * K)[:, None]))
        values = tl.load(
            v_ptr + (v_offset + ((y_m * width + x_m) * v_n_stride)[None, :]), mask=v_mask & inside[None, :], other=0.0
        )
        lambdas = tl.dot(values, e, lambdas, input_precision="ieee")

    lambdas = tl.reshape(lambdas, (EXAMPLES, V, TILE, K))
    examples = tl.arange(0, EXAMPLES)
    v = first_value + tl.arange(0, V)
    n = tl.arange(0, TILE)
    y_n = y0 + n // tile_columns
    x_n = x0 + n % tile_columns
    k = tl.arange(0, K)
    in_grid = (y_n < height) & (x_n < width)
    in_batch = first_example + examples < batch
    position = y_n * width + x_n
    q_offset = examples[:, None, None] * q_b_stride + (position * q_n_stride)[None, :, None]
    q_offset += k[None, None, :] * q_k_stride
    q_mask = in_batch[:, None, None] & in_grid[None, :, None] & (k < query_depth)[None, None, :]
    y_offset = examples[:, None, None] * (heads * height * width) + position[None, None, :]
    y_offset = y_offset * value_depth + v[None, :, None]
    y_mask = in_batch[:, None, None] & (v < value_depth)[None, :, None] & in_grid[None, None, :]
    for head in tl.static_range(HEADS):
        q = tl.load(q_ptr + head * q_h_stride + q_offset, mask=q_mask, other=0.0).to(tl.float32)
        y = tl.sum(lambdas * q[:, None, :, :], axis=3)
        tl.store(y_ptr + head * (height * width * value_depth) + y_offset, y.to(y_ptr.dtype.element_ty), mask=y_mask)
