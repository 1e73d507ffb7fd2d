# mypy: allow-untyped-defs
"""The Triton kernels of the table's gradient: one computes partial sums, one adds them.

Letters and conventions are those of `fused_kernels`.
"""

import triton.language as tl

from lambdanets.ops.position.fused_kernels import batched_dot, dot, kernel, offset64, window_bounds


@kernel
def grad_table_partial(
    partial_ptr, g_ptr, q_ptr, v_ptr,
    g_b, g_h, g_n, q_b, q_h, q_n, v_b, v_n,
    value_depth, query_depth, batch, heads, height, width, radius_y, radius_x,
    step_y, step_x, row_groups, chunks, split_examples,
    TILE: tl.constexpr, EXAMPLES: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, VEC: tl.constexpr, LAMBDA_ORDER: tl.constexpr,
):  # fmt: skip
    """Compute P[x,(dy m),k] = sum of q[x,(b h),k] g[b,(x h),v] V[b,(y + dy, m),v] over y, b, h, v.

    x and m are columns. In the lambda order, G[(x k),(b v)] = sum_h q g is the gradient of the
    lambdas, and the sum over b and v is one 2-d product. In the query order,
    T[b,(x h),(dy m)] = sum_v g V, with fewer multiply-adds but two batched products, between which
    T changes its layout.

    A program covers TILE query columns, step_y row offsets dy, step_x context columns and
    split_examples examples. It loops over groups of EXAMPLES examples, blocks of V value channels
    and query rows y. Each row of values is loaded step_y times, for consecutive y. The result is
    (splits, row groups, chunks, column tiles, TILE, STEP, K).
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
    x_first, x_last = window_bounds(x0, TILE, radius_x, width)
    first_offset = row_group * step_y - radius_y
    # Query rows with a context row at one of the offsets.
    y_first = tl.maximum(0, 1 - first_offset - step_y)
    y_last = tl.minimum(height - 1, height - 1 - first_offset)
    blocks = tl.cdiv(value_depth, V)
    split_first = split * split_examples
    split_end = tl.minimum(split_first + split_examples, batch)
    groups = tl.maximum(tl.cdiv(split_end - split_first, EXAMPLES), 0)

    step = tl.arange(0, STEP)
    dy = first_offset + step // step_x
    x_m = x_first + chunk * step_x + step % step_x
    in_scope = (x_m <= x_last) & (dy <= radius_y)
    v_offset = offset64(dy * width + x_m, v_n, VEC)
    if LAMBDA_ORDER:
        xk = tl.arange(0, TILE * K)
        q_x = x0 + xk // K
        q_offset = (offset64(q_x, q_n, VEC) + xk % K)[:, None]
        q_mask = ((q_x < width) & (xk % K < query_depth))[:, None]
        x = x0 + tl.arange(0, TILE)
        g_offset = offset64(x, g_n, VEC)[:, None]
        g_mask = (x < width)[:, None]
        b = tl.arange(0, EXAMPLES)
        bv = tl.arange(0, EXAMPLES * V)
        total = tl.zeros((TILE * K, STEP), tl.float32)
        for i in range(groups * blocks):
            b0 = split_first + i // blocks * EXAMPLES
            v_bv = i % blocks * V + bv % V
            b_bv = b0 + bv // V
            in_both = (b_bv < split_end) & (v_bv < value_depth)
            q_rows = q_ptr + (q_offset + offset64(b0 + b, q_b, VEC)[None, :])
            q_group_mask = q_mask & (b0 + b < split_end)[None, :]
            g_rows = g_ptr + (g_offset + (offset64(b_bv, g_b, VEC) + v_bv)[None, :])
            v_rows = v_ptr + (v_offset[:, None] + (offset64(b_bv, v_b, VEC) + v_bv)[None, :])
            for y in range(y_first, y_last + 1):
                start = (y * width).to(tl.int64) * VEC
                inside = in_scope & (y + dy >= 0) & (y + dy < height)
                v_mask = inside[:, None] & in_both[None, :]
                values = tl.load(v_rows + start * v_n, mask=v_mask, other=0.0)
                lambda_grad = tl.zeros((TILE, K, EXAMPLES, V), tl.float32)
                for head in tl.static_range(HEADS):
                    q_head = q_rows + (start * q_n + head * VEC * q_h.to(tl.int64))
                    g_head = g_rows + (start * g_n + head * VEC * g_h.to(tl.int64))
                    q = tl.load(q_head, mask=q_group_mask, other=0.0).to(tl.float32)
                    g = tl.load(g_head, mask=g_mask & in_both[None, :], other=0.0).to(tl.float32)
                    q = tl.reshape(q, (TILE, K, EXAMPLES, 1))
                    lambda_grad += q * tl.reshape(g, (TILE, 1, EXAMPLES, V))
                lambda_grad = tl.reshape(lambda_grad, (TILE * K, EXAMPLES * V)).to(values.dtype)
                total = dot(lambda_grad, tl.trans(values), total)
        partial = tl.permute(tl.reshape(total, (TILE, K, STEP)), (0, 2, 1))
    else:
        k = tl.arange(0, K)
        v = tl.arange(0, V)
        b = tl.arange(0, EXAMPLES)
        x = x0 + tl.arange(0, TILE)
        bh = tl.arange(0, EXAMPLES * HEADS)
        h = bh % HEADS
        q_offset = offset64(x, q_n, VEC)[:, None, None] + offset64(h, q_h, VEC)[None, :, None]
        q_mask = (x < width)[:, None, None] & (h < heads)[None, :, None]
        q_mask &= (k < query_depth)[None, None, :]
        xh = tl.arange(0, TILE * HEADS)
        g_x, h_xh = x0 + xh // HEADS, xh % HEADS
        g_offset = (offset64(g_x, g_n, VEC) + offset64(h_xh, g_h, VEC))[None, :, None]
        g_mask = ((g_x < width) & (h_xh < heads))[None, :, None]
        v_offset = v_offset[None, :, None]
        partial = tl.zeros((TILE, STEP, K), tl.float32)
        for i in range(groups * blocks):
            v0 = i % blocks * V
            b0 = split_first + i // blocks * EXAMPLES
            in_split = b0 + b < split_end
            in_both = in_split[:, None, None] & (v0 + v < value_depth)[None, None, :]
            b_bh = b0 + bh // HEADS
            offset = offset64(b0 + b, g_b, VEC)[:, None, None] + g_offset
            g_rows = g_ptr + (offset + (v0 + v)[None, None, :])
            offset = offset64(b0 + b, v_b, VEC)[:, None, None] + v_offset
            v_rows = v_ptr + (offset + (v0 + v)[None, None, :])
            offset = offset64(b_bh, q_b, VEC)[None, :, None] + q_offset
            q_rows = q_ptr + (offset + k[None, None, :])
            q_group_mask = q_mask & (b_bh < split_end)[None, :, None]
            for y in range(y_first, y_last + 1):
                start = (y * width).to(tl.int64) * VEC
                g = tl.load(g_rows + start * g_n, mask=g_mask & in_both, other=0.0)
                inside = in_scope & (y + dy >= 0) & (y + dy < height)
                v_mask = in_both & inside[None, :, None]
                values = tl.load(v_rows + start * v_n, mask=v_mask, other=0.0)
                q = tl.load(q_rows + start * q_n, mask=q_group_mask, other=0.0)
                products = batched_dot(g, tl.permute(values, (0, 2, 1))).to(q.dtype)
                products = tl.reshape(products, (EXAMPLES, TILE, HEADS, STEP))
                products = tl.permute(products, (1, 3, 0, 2))
                partial = dot(tl.reshape(products, (TILE, STEP, EXAMPLES * HEADS)), q, partial)

    offset = tl.arange(0, TILE)[:, None] * STEP + step[None, :]
    partial_ptr += program.to(tl.int64) * (TILE * STEP * K)
    tl.store(partial_ptr + (offset[:, :, None] * K + tl.arange(0, K)[None, None, :]), partial)


@kernel
def reduce_grad_table(
    partial_ptr, o_ptr,
    query_depth, width, radius_x, step_y, step_x, row_groups, chunks, splits,
    TILE: tl.constexpr, STEP: tl.constexpr, K: tl.constexpr, LOADS: tl.constexpr,
):  # fmt: skip
    """Compute dR[dy,dx,k] as the sum over splits, column tiles and pairs of columns at offset dx.

    LOADS partial sums are loaded at once, to hide latency. The result is contiguous.
    """
    columns = 2 * radius_x + 1
    row = tl.program_id(0) // columns
    dx = tl.program_id(0) % columns - radius_x
    tiles_x = tl.cdiv(width, TILE)
    j = tl.arange(0, LOADS * TILE) % TILE
    load = tl.arange(0, LOADS * TILE) // TILE
    k = tl.arange(0, K)
    total = tl.zeros((LOADS * TILE, K), tl.float32)
    for first in range(0, splits * tiles_x, LOADS):
        i = first + load
        tile = i % tiles_x
        group = i // tiles_x * row_groups + row // step_y
        x_first, x_last = window_bounds(tile * TILE, TILE, radius_x, width)
        column = tile * TILE + j + dx - x_first
        # Queries outside of the map need no mask, because their gradients were loaded as zero.
        mask = (i < splits * tiles_x) & (column >= 0) & (column <= x_last - x_first)
        column = tl.minimum(tl.maximum(column, 0), x_last - x_first)
        partial = (group * chunks + column // step_x) * tiles_x + tile
        entry = (partial.to(tl.int64) * TILE + j) * STEP + row % step_y * step_x + column % step_x
        offset = entry[:, None] * K + k[None, :]
        total += tl.load(partial_ptr + offset, mask=mask[:, None], other=0.0)
    o_row = o_ptr + tl.program_id(0) * query_depth
    tl.store(o_row + k, tl.sum(total, axis=0), mask=k < query_depth)
