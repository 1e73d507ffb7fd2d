# mypy: allow-untyped-defs
"""Triton kernels for the gradient of the table: one computes partial sums, one adds them. No atomic additions."""

import triton
import triton.language as tl

from lambdanets.ops.position.fused.forward_kernels import SIZES, STRIDES, offset64, window_bounds
from lambdanets.ops.position.fused.gradient_kernels import batched_dot


@triton.jit(do_not_specialize=[*SIZES, *STRIDES, "row_groups", "chunks", "split_examples"])
def grad_table_partial(
    g_ptr,  # (b, h, n, v), aligned rows
    q_ptr,  # (b, h, n, k), aligned rows
    v_ptr,  # (b, n, v), aligned rows
    o_ptr,  # (splits, row groups, chunks, column tiles, TILE, STEP, K), contiguous
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
    row_radius,
    column_radius,
    step_rows,
    step_columns,
    row_groups,
    chunks,
    split_examples,
    TILE: tl.constexpr,  # query positions of a row
    EXAMPLES: tl.constexpr,
    HEADS: tl.constexpr,  # rounded up to a power of two, unless LAMBDA_ORDER
    STEP: tl.constexpr,  # pairs (row offset, context column) of a program
    K: tl.constexpr,
    V: tl.constexpr,
    VEC: tl.constexpr,
    LAMBDA_ORDER: tl.constexpr,  # for tensor cores
):
    """Compute partial[x,(dy m),k] = sum over y, b, h, v of q[x,(b h),k] g[b,(x h),v] V[b,(y + dy, m),v].

    x and m are columns. In the lambda order, G[(x k),(b v)] = sum_h q g is the gradient of the lambdas, and
    the sum over b and v is one 2-d product. In the query order, T[b,(x h),(dy m)] = sum_v g V, with fewer
    multiply-adds but two batched products, between which T changes its layout.
    A program covers TILE query columns, step_rows row offsets, step_columns context columns, split_examples examples.
    It loops over groups of EXAMPLES examples, blocks of V value channels and query rows y. Each row of values is loaded
    step_rows times, for consecutive y.
    """
    value_depth *= VEC
    query_depth *= VEC
    tiles_x = tl.cdiv(width, TILE)
    program = tl.program_id(0)
    tile = program % tiles_x
    chunk = program // tiles_x % chunks
    row_group = program // tiles_x // chunks % row_groups
    split = program // tiles_x // chunks // row_groups
    x0 = tile * TILE
    x_first, x_last = window_bounds(x0, TILE, column_radius, width)
    first_offset = row_group * step_rows - row_radius
    # Query rows with a context row at one of the offsets.
    y_first = tl.maximum(0, 1 - first_offset - step_rows)
    y_last = tl.minimum(height - 1, height - 1 - first_offset)
    blocks = tl.cdiv(value_depth, V)
    split_first = split * split_examples
    split_end = tl.minimum(split_first + split_examples, batch)
    groups = tl.maximum(tl.cdiv(split_end - split_first, EXAMPLES), 0)

    step = tl.arange(0, STEP)
    y_offset = first_offset + step // step_columns
    x_m = x_first + chunk * step_columns + step % step_columns
    m_mask = (x_m <= x_last) & (y_offset <= row_radius)
    m_offset = offset64(y_offset * width + x_m, v_n_stride, VEC)
    if LAMBDA_ORDER:
        nk = tl.arange(0, TILE * K)
        q_x = x0 + nk // K
        q_offset = (offset64(q_x, q_n_stride, VEC) + nk % K)[:, None]
        q_mask = ((q_x < width) & (nk % K < query_depth))[:, None]
        x_n = x0 + tl.arange(0, TILE)
        g_offset = offset64(x_n, g_n_stride, VEC)[:, None]
        g_mask = (x_n < width)[:, None]
        examples = tl.arange(0, EXAMPLES)
        bv = tl.arange(0, EXAMPLES * V)
        total = tl.zeros((TILE * K, STEP), tl.float32)
        for i in range(groups * blocks):
            first_example = split_first + i // blocks * EXAMPLES
            value = i % blocks * V + bv % V
            example = first_example + bv // V
            in_both = (example < split_end) & (value < value_depth)
            q_rows = q_ptr + (q_offset + offset64(first_example + examples, q_b_stride, VEC)[None, :])
            q_example_mask = q_mask & (first_example + examples < split_end)[None, :]
            g_rows = g_ptr + (g_offset + (offset64(example, g_b_stride, VEC) + value)[None, :])
            v_rows = v_ptr + (m_offset[:, None] + (offset64(example, v_b_stride, VEC) + value)[None, :])
            for y in range(y_first, y_last + 1):
                start = (y * width).to(tl.int64) * VEC
                inside = m_mask & (y + y_offset >= 0) & (y + y_offset < height)
                values = tl.load(v_rows + start * v_n_stride, mask=inside[:, None] & in_both[None, :], other=0.0)
                lambda_grad = tl.zeros((TILE, K, EXAMPLES, V), tl.float32)
                for head in tl.static_range(HEADS):
                    q_head = q_rows + (start * q_n_stride + head * VEC * q_h_stride.to(tl.int64))
                    g_head = g_rows + (start * g_n_stride + head * VEC * g_h_stride.to(tl.int64))
                    q = tl.load(q_head, mask=q_example_mask, other=0.0).to(tl.float32)
                    g = tl.load(g_head, mask=g_mask & in_both[None, :], other=0.0).to(tl.float32)
                    q = tl.reshape(q, (TILE, K, EXAMPLES, 1))
                    lambda_grad += q * tl.reshape(g, (TILE, 1, EXAMPLES, V))
                lambda_grad = tl.reshape(lambda_grad, (TILE * K, EXAMPLES * V)).to(values.dtype)
                total = tl.dot(lambda_grad, tl.trans(values), total, input_precision="ieee")
        partial = tl.permute(tl.reshape(total, (TILE, K, STEP)), (0, 2, 1))
    else:
        k = tl.arange(0, K)
        v = tl.arange(0, V)
        examples = tl.arange(0, EXAMPLES)
        x_n = x0 + tl.arange(0, TILE)
        rows = tl.arange(0, EXAMPLES * HEADS)
        head = rows % HEADS
        q_offset = offset64(x_n, q_n_stride, VEC)[:, None, None] + offset64(head, q_h_stride, VEC)[None, :, None]
        q_mask = (x_n < width)[:, None, None] & (head < heads)[None, :, None] & (k < query_depth)[None, None, :]
        g_rows = tl.arange(0, TILE * HEADS)
        g_x = x0 + g_rows // HEADS
        g_head = g_rows % HEADS
        g_offset = (offset64(g_x, g_n_stride, VEC) + offset64(g_head, g_h_stride, VEC))[None, :, None]
        g_mask = ((g_x < width) & (g_head < heads))[None, :, None]
        v_offset = m_offset[None, :, None]
        partial = tl.zeros((TILE, STEP, K), tl.float32)
        for i in range(groups * blocks):
            first_value = i % blocks * V
            first_example = split_first + i // blocks * EXAMPLES
            in_split = first_example + examples < split_end
            in_both = in_split[:, None, None] & (first_value + v < value_depth)[None, None, :]
            example = first_example + rows // HEADS
            g_group_ptr = g_ptr + (
                offset64(first_example + examples, g_b_stride, VEC)[:, None, None]
                + g_offset
                + (first_value + v)[None, None, :]
            )
            v_group_ptr = v_ptr + (
                offset64(first_example + examples, v_b_stride, VEC)[:, None, None]
                + v_offset
                + (first_value + v)[None, None, :]
            )
            q_group_ptr = q_ptr + (offset64(example, q_b_stride, VEC)[None, :, None] + q_offset + k[None, None, :])
            q_group_mask = q_mask & (example < split_end)[None, :, None]
            for y in range(y_first, y_last + 1):
                start = (y * width).to(tl.int64) * VEC
                g = tl.load(g_group_ptr + start * g_n_stride, mask=g_mask & in_both, other=0.0)
                inside = m_mask & (y + y_offset >= 0) & (y + y_offset < height)
                values = tl.load(v_group_ptr + start * v_n_stride, mask=in_both & inside[None, :, None], other=0.0)
                q = tl.load(q_group_ptr + start * q_n_stride, mask=q_group_mask, other=0.0)
                products = tl.zeros((EXAMPLES, TILE * HEADS, STEP), tl.float32)
                products = batched_dot(g, tl.permute(values, (0, 2, 1)), products).to(q.dtype)
                products = tl.permute(tl.reshape(products, (EXAMPLES, TILE, HEADS, STEP)), (1, 3, 0, 2))
                partial = tl.dot(
                    tl.reshape(products, (TILE, STEP, EXAMPLES * HEADS)), q, partial, input_precision="ieee"
                )

    offset = tl.arange(0, TILE)[:, None] * STEP + step[None, :]
    o_ptr += program.to(tl.int64) * (TILE * STEP * K)
    tl.store(o_ptr + (offset[:, :, None] * K + tl.arange(0, K)[None, None, :]), partial)


@triton.jit(do_not_specialize=[*SIZES, "row_groups", "chunks", "splits"])
def reduce_grad_table(
    partial_ptr,  # output of `grad_table_partial`
    o_ptr,  # (2 row_radius + 1, 2 column_radius + 1, k), contiguous
    query_depth,
    width,
    column_radius,
    step_rows,
    step_columns,
    row_groups,
    chunks,
    splits,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    K: tl.constexpr,
    PARTIALS_PER_LOAD: tl.constexpr,  # several, to hide latency
):
    """Compute dR[dy,dx,k] as the sum of partial sums over splits, column tiles and pairs of columns at offset dx."""
    columns = 2 * column_radius + 1
    row = tl.program_id(0) // columns
    column_offset = tl.program_id(0) % columns - column_radius
    tiles_x = tl.cdiv(width, TILE)
    j = tl.arange(0, PARTIALS_PER_LOAD * TILE) % TILE
    partial_index = tl.arange(0, PARTIALS_PER_LOAD * TILE) // TILE
    k = tl.arange(0, K)
    total = tl.zeros((PARTIALS_PER_LOAD * TILE, K), tl.float32)
    for first in range(0, splits * tiles_x, PARTIALS_PER_LOAD):
        i = first + partial_index
        tile = i % tiles_x
        group = i // tiles_x * row_groups + row // step_rows
        x_first, x_last = window_bounds(tile * TILE, TILE, column_radius, width)
        column = tile * TILE + j + column_offset - x_first
        # Queries outside the map need no mask, because their gradients were loaded as zero.
        mask = (i < splits * tiles_x) & (column >= 0) & (column <= x_last - x_first)
        column = tl.minimum(tl.maximum(column, 0), x_last - x_first)
        partial = (group * chunks + column // step_columns) * tiles_x + tile
        entry = (partial.to(tl.int64) * TILE + j) * STEP + row % step_rows * step_columns + column % step_columns
        total += tl.load(partial_ptr + (entry[:, None] * K + k[None, :]), mask=mask[:, None], other=0.0)
    tl.store(o_ptr + tl.program_id(0) * query_depth + k, tl.sum(total, axis=0), mask=k < query_depth)
