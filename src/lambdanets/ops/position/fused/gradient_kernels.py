# mypy: allow-untyped-defs
"""Triton kernels for the gradients of queries and values, which recompute logits and need no atomic additions.

Each output element is computed by one program, which sums in a fixed order. Tiles, steps, vectors and the table are as
in `forward_kernels`. g is the gradient of y; o is the output of the kernel.
"""

import triton
import triton.language as tl

from lambdanets.ops.position.fused.forward_kernels import (
    SIZES,
    STRIDES,
    offset64,
    program_tile,
    step_positions,
    sum_lambdas,
    window_bounds,
)


@triton.jit
def batched_dot(a, b, total):
    """Return total + a @ b, batched; a batch of one uses a 2-d product, whose rows are divided among the warps."""
    if a.shape[0] == 1:
        a_2d = tl.reshape(a, (a.shape[1], a.shape[2]))
        b_2d = tl.reshape(b, (b.shape[1], b.shape[2]))
        total = tl.reshape(total, (a.shape[1], b.shape[2]))
        total = tl.reshape(tl.dot(a_2d, b_2d, total, input_precision="ieee"), (1, a.shape[1], b.shape[2]))
    else:
        total = tl.dot(a, b, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=SIZES + STRIDES)
def grad_queries(
    g_ptr,  # (b, h, n, v), aligned rows
    table_ptr,
    v_ptr,  # (b, n, v), aligned rows
    c_ptr,  # (b, k, v), aligned rows
    o_ptr,  # (b, h, n, k), aligned rows
    g_b_stride,
    g_h_stride,
    g_n_stride,
    v_b_stride,
    v_n_stride,
    c_b_stride,
    c_k_stride,
    o_b_stride,
    o_h_stride,
    o_n_stride,
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
    HEADS: tl.constexpr,
    STEP: tl.constexpr,  # context positions of a step
    K: tl.constexpr,
    V: tl.constexpr,
    VEC: tl.constexpr,
    CONTENT: tl.constexpr,
):
    """Compute dq[n,(b h),k] = g c + sum_m T[n,(b h),m] E[n,m,k] with T[b,(n h),m] = g[b,(n h),v] V[b,v,m]."""
    value_depth *= VEC
    query_depth *= VEC
    _, y0, x0, group = program_tile(tl.program_id(0), 1, height, width, tile_rows, tile_columns)
    first_example = group * EXAMPLES

    examples = first_example + tl.arange(0, EXAMPLES)
    in_batch = (examples < batch)[:, None, None]
    v = tl.arange(0, V)
    in_depth = (v < value_depth)[None, None, :]
    k = tl.arange(0, K)
    rows = tl.arange(0, TILE * HEADS)
    y_n = y0 + rows // HEADS // tile_columns
    x_n = x0 + rows // HEADS % tile_columns
    head = rows % HEADS
    row_offset = offset64(head, g_h_stride, VEC) + offset64(y_n * width + x_n, g_n_stride, VEC)
    row_mask = (y_n < height) & (x_n < width) & (head < heads)
    g = tl.load(
        g_ptr + (offset64(examples, g_b_stride, VEC)[:, None, None] + row_offset[None, :, None] + v[None, None, :]),
        mask=in_batch & row_mask[None, :, None] & in_depth,
        other=0.0,
    )

    n = tl.arange(0, TILE)
    m = tl.arange(0, STEP)
    y_n = y0 + n // tile_columns
    x_n = x0 + n % tile_columns
    y_first, y_last = window_bounds(y0, tile_rows, row_radius, height)
    x_first, x_last = window_bounds(x0, tile_columns, column_radius, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    table_width = 2 * (column_radius + tile_columns) - 1
    query_index = (row_radius + tile_rows - 1 - y_n) * table_width + column_radius + tile_columns - 1 - x_n
    e_offset = query_index[:, None, None] * K + k[None, None, :]
    v_rows = v_ptr + (offset64(examples, v_b_stride, VEC)[:, None, None] + v[None, None, :])

    total = tl.zeros((TILE, EXAMPLES * HEADS, K), tl.float32)
    if CONTENT:
        c_offset = offset64(examples, c_b_stride, VEC)[:, None, None] + offset64(k, c_k_stride, VEC)[None, :, None]
        c_mask = in_batch & (k < query_depth)[None, :, None] & in_depth
        c = tl.load(c_ptr + (c_offset + v[None, None, :]), mask=c_mask, other=0.0)
        term = tl.dot(g, tl.permute(c, (0, 2, 1)), input_precision="ieee")
        term = tl.permute(tl.reshape(term, (EXAMPLES, TILE, HEADS, K)), (1, 0, 2, 3))
        total = tl.reshape(term, (TILE, EXAMPLES * HEADS, K))
    for step in range(steps_x * steps_y):
        y_m, x_m, inside = step_positions(m, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset + ((y_m * table_width + x_m) * K)[None, :, None]))
        values = tl.load(
            v_rows + offset64(y_m * width + x_m, v_n_stride, VEC)[None, :, None],
            mask=in_batch & in_depth & inside[None, :, None],
            other=0.0,
        )
        products = tl.zeros((EXAMPLES, TILE * HEADS, STEP), tl.float32)
        products = batched_dot(g, tl.permute(values, (0, 2, 1)), products).to(e.dtype)
        products = tl.permute(tl.reshape(products, (EXAMPLES, TILE, HEADS, STEP)), (1, 0, 2, 3))
        total = tl.dot(tl.reshape(products, (TILE, EXAMPLES * HEADS, STEP)), e, total, input_precision="ieee")

    rows = tl.arange(0, EXAMPLES * HEADS)
    example = first_example + rows // HEADS
    head = rows % HEADS
    row_offset = (offset64(example, o_b_stride, VEC) + offset64(head, o_h_stride, VEC))[None, :]
    offset = row_offset + offset64(y_n * width + x_n, o_n_stride, VEC)[:, None]
    mask = ((y_n < height) & (x_n < width))[:, None] & ((example < batch) & (head < heads))[None, :]
    tl.store(
        o_ptr + (offset[:, :, None] + k[None, None, :]),
        total.to(o_ptr.dtype.element_ty),
        mask=mask[:, :, None] & (k < query_depth)[None, None, :],
    )


@triton.jit(do_not_specialize=SIZES + STRIDES)
def grad_queries_lambda_order(
    g_ptr,  # (b, h, n, v), aligned rows
    table_ptr,
    v_ptr,  # (b, n, v), aligned rows
    c_ptr,  # (b, k, v), aligned rows
    o_ptr,  # (b, h, n, k), aligned rows
    g_b_stride,
    g_h_stride,
    g_n_stride,
    v_b_stride,
    v_n_stride,
    c_b_stride,
    c_k_stride,
    o_b_stride,
    o_h_stride,
    o_n_stride,
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
    HEADS: tl.constexpr,  # not rounded up
    STEP: tl.constexpr,  # context positions of a step
    K: tl.constexpr,
    V: tl.constexpr,
    VEC: tl.constexpr,
    CONTENT: tl.constexpr,
):
    """Compute dq[b,h,n,k] = sum_v g[b,h,n,v] lambda[(n k),(b v)], with all value channels in one program.

    (b v) are the columns of the product, so that the final sum over v needs little communication between threads.
    """
    value_depth *= VEC
    query_depth *= VEC
    _, y0, x0, group = program_tile(tl.program_id(0), 1, height, width, tile_rows, tile_columns)
    first_example = group * EXAMPLES
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
        0,
        TILE,
        EXAMPLES,
        STEP,
        K,
        V,
        VEC,
        True,
    )
    lambdas = tl.reshape(lambdas, (TILE, K, EXAMPLES, V))
    examples = first_example + tl.arange(0, EXAMPLES)
    v = tl.arange(0, V)
    n = tl.arange(0, TILE)
    y_n = y0 + n // tile_columns
    x_n = x0 + n % tile_columns
    k = tl.arange(0, K)
    in_grid = (y_n < height) & (x_n < width)
    in_batch = examples < batch
    if CONTENT:
        c_offset = offset64(k, c_k_stride, VEC)[:, None, None] + offset64(examples, c_b_stride, VEC)[None, :, None]
        c_mask = (k < query_depth)[:, None, None] & in_batch[None, :, None] & (v < value_depth)[None, None, :]
        c = tl.load(c_ptr + (c_offset + v[None, None, :]), mask=c_mask, other=0.0).to(tl.float32)
        lambdas += c[None, :, :, :]
    position = y_n * width + x_n
    g_offset = offset64(position, g_n_stride, VEC)[:, None, None] + offset64(examples, g_b_stride, VEC)[None, :, None]
    g_offset += v[None, None, :]
    g_mask = in_grid[:, None, None] & in_batch[None, :, None] & (v < value_depth)[None, None, :]
    o_offset = offset64(position, o_n_stride, VEC)[:, None, None] + offset64(examples, o_b_stride, VEC)[None, None, :]
    o_offset += k[None, :, None]
    o_mask = in_grid[:, None, None] & (k < query_depth)[None, :, None] & in_batch[None, None, :]
    for head in tl.static_range(HEADS):
        g = tl.load(g_ptr + head * VEC * g_h_stride.to(tl.int64) + g_offset, mask=g_mask, other=0.0).to(tl.float32)
        dq = tl.sum(lambdas * g[:, None, :, :], axis=3)
        o_head_ptr = o_ptr + head * VEC * o_h_stride.to(tl.int64)
        tl.store(o_head_ptr + o_offset, dq.to(o_ptr.dtype.element_ty), mask=o_mask)


@triton.jit(do_not_specialize=SIZES + STRIDES)
def grad_values(
    g_ptr,  # (b, h, n, v), aligned rows
    q_ptr,  # (b, h, n, k), aligned rows
    table_ptr,
    o_ptr,  # (b, n, v), aligned rows
    g_b_stride,
    g_h_stride,
    g_n_stride,
    q_b_stride,
    q_h_stride,
    q_n_stride,
    o_b_stride,
    o_n_stride,
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
    TILE: tl.constexpr,  # context positions of a program
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,
    STEP: tl.constexpr,  # query positions of a step
    K: tl.constexpr,
    V: tl.constexpr,
    VEC: tl.constexpr,
):
    """Compute dV[b,m,v] = sum_(n h) S[b,m,(n h)] g[b,(n h),v] with logits S[n,m,(b h)] = E[n,m,k] q[n,k,(b h)]."""
    ROWS: tl.constexpr = EXAMPLES * HEADS
    value_depth *= VEC
    query_depth *= VEC
    blocks = tl.cdiv(value_depth, V)
    block, y0, x0, group = program_tile(tl.program_id(0), blocks, height, width, tile_rows, tile_columns)
    first_example = group * EXAMPLES

    m = tl.arange(0, TILE)
    y_m = y0 + m // tile_columns
    x_m = x0 + m % tile_columns
    k = tl.arange(0, K)
    n = tl.arange(0, STEP)
    y_first, y_last = window_bounds(y0, tile_rows, row_radius, height)
    x_first, x_last = window_bounds(x0, tile_columns, column_radius, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_columns)
    steps_y = tl.cdiv(y_last - y_first + 1, step_rows)
    table_width = 2 * (column_radius + tile_columns) - 1
    key_index = (row_radius + tile_rows - 1 + y_m) * table_width + column_radius + tile_columns - 1 + x_m
    e_offset = key_index[None, :, None] * K + k[None, None, :]
    rows = tl.arange(0, ROWS)
    example = first_example + rows // HEADS
    head = rows % HEADS
    q_offset = offset64(example, q_b_stride, VEC) + offset64(head, q_h_stride, VEC)
    q_rows = q_ptr + (q_offset[None, None, :] + k[None, :, None])
    q_mask = ((example < batch) & (head < heads))[None, None, :] & (k < query_depth)[None, :, None]
    examples = first_example + tl.arange(0, EXAMPLES)
    v = block * V + tl.arange(0, V)
    rows = tl.arange(0, STEP * HEADS)
    g_head = rows % HEADS
    g_offset = offset64(examples, g_b_stride, VEC)[:, None, None] + offset64(g_head, g_h_stride, VEC)[None, :, None]
    g_rows = g_ptr + (g_offset + v[None, None, :])
    o_mask = (examples < batch)[:, None, None] & (v < value_depth)[None, None, :]
    g_mask = o_mask & (g_head < heads)[None, :, None]

    total = tl.zeros((EXAMPLES, TILE, V), tl.float32)
    for step in range(steps_x * steps_y):
        y_n, x_n, inside = step_positions(n, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns)
        e = tl.load(table_ptr + (e_offset - ((y_n * table_width + x_n) * K)[:, None, None]))
        q = tl.load(
            q_rows + offset64(y_n * width + x_n, q_n_stride, VEC)[:, None, None],
            mask=q_mask & inside[:, None, None],
            other=0.0,
        )
        # the same positions, repeated for each head
        y_n, x_n, inside = step_positions(
            rows // HEADS, step, steps_x, y_first, y_last, x_first, x_last, step_rows, step_columns
        )
        g = tl.load(
            g_rows + offset64(y_n * width + x_n, g_n_stride, VEC)[None, :, None],
            mask=g_mask & inside[None, :, None],
            other=0.0,
        )
        logits = tl.dot(e, q, input_precision="ieee").to(g.dtype)
        logits = tl.permute(tl.reshape(logits, (STEP, TILE, EXAMPLES, HEADS)), (2, 1, 0, 3))
        total = tl.dot(tl.reshape(logits, (EXAMPLES, TILE, STEP * HEADS)), g, total, input_precision="ieee")

    offset = offset64(examples, o_b_stride, VEC)[:, None] + offset64(y_m * width + x_m, o_n_stride, VEC)[None, :]
    tl.store(
        o_ptr + (offset[:, :, None] + v[None, None, :]),
        total.to(o_ptr.dtype.element_ty),
        mask=o_mask & ((y_m < height) & (x_m < width))[None, :, None],
    )
