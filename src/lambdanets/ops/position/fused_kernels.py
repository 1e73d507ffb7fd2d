# mypy: allow-untyped-defs
"""The Triton kernels of `fused`. They add in a fixed order, without atomic additions.

Letters are those of README.md: queries q (b, h, n, k), values V (b, n, v), content lambda c
(b, k, v), output y and its gradient g (b, h, n, v). a is the first operand, o the result. q_b is
the stride of q along b, and y_n the row of position n in the map. E[n,m] is the embedding of query
n and context position m.

A program computes a tile of tile_y x tile_x = TILE positions for EXAMPLES examples. It loops over
the other positions in the scope of the tile, step_y x step_x = STEP at a time. K and V are its
query depth and value channels, HEADS the heads, which the query order rounds up to a power of two.

The launcher pads the table (rows, columns, K) with zeros by the size of a tile, so pairs outside of
the scope of a query need no mask; README.md derives their index. Positions outside of the map and
examples outside of the batch are masked, and the indices of their embeddings are clamped to the
table, because 0 * NaN is NaN. Strides and depths are in vectors of VEC elements (16 bytes), so that
the compiler knows that loads are aligned. Offsets into tensors have 64 bits.
"""

import inspect

import triton
import triton.language as tl


def kernel(function):
    """Make a kernel, which is not compiled again for other sizes and strides."""
    names = inspect.signature(function).parameters
    sizes = [name for name in names if name.islower() and not name.endswith("_ptr")]
    return triton.jit(function, do_not_specialize=sizes)


@triton.jit
def offset64(index, stride, VEC: tl.constexpr):
    """Return index * stride in elements as int64; the stride is in vectors of VEC elements."""
    return index.to(tl.int64) * stride * VEC


@triton.jit
def program_tile(blocks, height, width, tile_y, tile_x):
    """Return the block of value channels, first row and column of the tile, group of examples."""
    program = tl.program_id(0)
    tiles_x = tl.cdiv(width, tile_x)
    tiles = tl.cdiv(height, tile_y) * tiles_x
    tile = program // blocks % tiles
    block = program % blocks
    y0, x0 = tile // tiles_x * tile_y, tile % tiles_x * tile_x
    return block, y0, x0, program // blocks // tiles


@triton.jit
def window_bounds(start, tile, radius, side):
    """Return the first and last position along an axis within the radius of a tile."""
    return tl.maximum(start - radius, 0), tl.minimum(start + tile - 1 + radius, side - 1)


@triton.jit
def tile_window(y0, x0, height, width, radius_y, radius_x, tile_y, tile_x, step_y, step_x):
    """Return the steps along both axes, and other arguments of `step_positions`."""
    y_first, y_last = window_bounds(y0, tile_y, radius_y, height)
    x_first, x_last = window_bounds(x0, tile_x, radius_x, width)
    steps_x = tl.cdiv(x_last - x_first + 1, step_x)
    steps_y = tl.cdiv(y_last - y_first + 1, step_y)
    return steps_x, steps_y, y_first, y_last, x_first, x_last, step_y, step_x


@triton.jit
def step_positions(i, step, window):
    """Return rows and columns of positions i of a step, clamped to the window, and if inside it."""
    steps_x, _, y_first, y_last, x_first, x_last, step_y, step_x = window
    y = y_first + (step // steps_x) * step_y + i // step_x
    x = x_first + (step % steps_x) * step_x + i % step_x
    return tl.minimum(y, y_last), tl.minimum(x, x_last), (y <= y_last) & (x <= x_last)


@triton.jit
def dot(a, b, total=None):
    """Return total + a @ b in float32. Of float32, it is the sum of three products in TF32, of high and low bits.

    One product in TF32 would lose precision.
    """
    return tl.dot(a, b, total, input_precision="tf32x3")


@kernel
def forward_or_grad_queries(
    table_ptr, a_ptr, v_ptr, c_ptr, o_ptr,
    a_b, a_h, a_n, v_b, v_n, c_b, c_k, o_b, o_h, o_n,
    value_depth, query_depth, batch, heads, height, width, radius_y, radius_x,
    tile_y, tile_x, step_y, step_x,
    TILE: tl.constexpr, EXAMPLES: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, VEC: tl.constexpr,
    CONTENT: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Compute y from a = q or, if GRADIENT, dq from a = g with all value channels in a program.

    y[b,h,n,v] = sum_k q lambda   with lambda[(b v),(n k)] = c + sum_m V[(b v),m] E[m,(n k)]
    dq[b,h,n,k] = sum_v g lambda  with the transpose, lambda[(n k),(b v)]

    The final sum is over columns of the product, of which a thread has several.
    """
    value_depth *= VEC
    query_depth *= VEC
    blocks = 1 if GRADIENT else tl.cdiv(value_depth, V)
    block, y0, x0, group = program_tile(blocks, height, width, tile_y, tile_x)
    b0 = group * EXAMPLES
    v0 = block * V

    nk = tl.arange(0, TILE * K)
    y_nk, x_nk = y0 + nk // K // tile_x, x0 + nk // K % tile_x
    m = tl.arange(0, STEP)
    bv = tl.arange(0, EXAMPLES * V)
    window = tile_window(y0, x0, height, width, radius_y, radius_x, tile_y, tile_x, step_y, step_x)
    table_width = 2 * (radius_x + tile_x) - 1
    # Query part of the index of each pair's embedding; each step adds the key part.
    query_index = (radius_y + tile_y - 1 - y_nk) * table_width + radius_x + tile_x - 1 - x_nk
    # Axes of the product, along which the loads of its factors are expanded.
    BV: tl.constexpr = 0 if GRADIENT else 1
    NK: tl.constexpr = 1 if GRADIENT else 0
    e_offset = tl.expand_dims(query_index * K + nk % K, NK)
    v_rows = v_ptr + tl.expand_dims(offset64(b0 + bv // V, v_b, VEC) + v0 + bv % V, BV)
    v_mask = tl.expand_dims((b0 + bv // V < batch) & (v0 + bv % V < value_depth), BV)
    shape: tl.constexpr = (TILE * K, EXAMPLES * V) if GRADIENT else (EXAMPLES * V, TILE * K)
    lambdas = tl.zeros(shape, tl.float32)
    for step in range(window[0] * window[1]):
        y_m, x_m, inside = step_positions(m, step, window)
        e = tl.load(table_ptr + (e_offset + tl.expand_dims((y_m * table_width + x_m) * K, BV)))
        v_step = v_rows + tl.expand_dims(offset64(y_m * width + x_m, v_n, VEC), NK)
        values = tl.load(v_step, mask=v_mask & tl.expand_dims(inside, NK), other=0.0)
        # Of float32, without tensor cores: on an H200 in 0.7 of the time of `dot`, which copies both operands.
        if GRADIENT:
            lambdas = tl.dot(e, values, lambdas, input_precision="ieee")
        else:
            lambdas = tl.dot(values, e, lambdas, input_precision="ieee")

    b = b0 + tl.arange(0, EXAMPLES)
    k = tl.arange(0, K)
    v = v0 + tl.arange(0, V)
    n = tl.arange(0, TILE)
    y_n, x_n = y0 + n // tile_x, x0 + n % tile_x
    n = y_n * width + x_n
    lambdas = tl.reshape(lambdas, (TILE, K, EXAMPLES, V) if GRADIENT else (EXAMPLES, V, TILE, K))
    if CONTENT:
        offset = offset64(b, c_b, VEC)[:, None, None] + offset64(k, c_k, VEC)[None, :, None]
        mask = (b < batch)[:, None, None] & (k < query_depth)[None, :, None]
        mask &= (v < value_depth)[None, None, :]
        c = tl.load(c_ptr + (offset + v[None, None, :]), mask=mask, other=0.0).to(tl.float32)
        if GRADIENT:
            lambdas += tl.permute(c, (1, 0, 2))[None, :, :, :]
        else:
            lambdas += tl.permute(c, (0, 2, 1))[:, :, None, :]
    # a and o along the axes of lambdas, (i, r, j, s): s is summed and r remains.
    a_i, a_j, o_i, o_j = offset64(b, a_b, VEC), offset64(n, a_n, VEC), offset64(b, o_b, VEC), offset64(n, o_n, VEC)
    in_i, in_j, r, in_r = b < batch, (y_n < height) & (x_n < width), v, v < value_depth
    s, in_s = k, k < query_depth
    if GRADIENT:
        a_i, a_j, o_i, o_j, in_i, in_j, r, in_r, s, in_s = a_j, a_i, o_j, o_i, in_j, in_i, s, in_s, r, in_r
    a_offset = a_i[:, None, None] + a_j[None, :, None] + s[None, None, :]
    a_mask = in_i[:, None, None] & in_j[None, :, None] & in_s[None, None, :]
    o_offset = o_i[:, None, None] + r[None, :, None] + o_j[None, None, :]
    o_mask = in_i[:, None, None] & in_r[None, :, None] & in_j[None, None, :]
    for head in tl.static_range(HEADS):
        a_head = a_ptr + head * VEC * a_h.to(tl.int64) + a_offset
        a = tl.load(a_head, mask=a_mask, other=0.0).to(tl.float32)
        o = tl.sum(lambdas * a[:, None, :, :], axis=3)
        o_head = o_ptr + head * VEC * o_h.to(tl.int64) + o_offset
        tl.store(o_head, o.to(o_ptr.dtype.element_ty), mask=o_mask)


@kernel
def grad_values(
    table_ptr, g_ptr, q_ptr, o_ptr,
    g_b, g_h, g_n, q_b, q_h, q_n, o_b, o_n,
    value_depth, query_depth, batch, heads, height, width, radius_y, radius_x,
    tile_y, tile_x, step_y, step_x,
    TILE: tl.constexpr, EXAMPLES: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Compute dV[b,m,v] = sum_(n h) S[b,m,(n h)] g[b,(n h),v].

    Logits are S[n,m,(b h)] = E[n,m,k] q[n,k,(b h)]. Tiles are of context positions m, steps of n.
    """
    value_depth *= VEC
    query_depth *= VEC
    blocks = tl.cdiv(value_depth, V)
    block, y0, x0, group = program_tile(blocks, height, width, tile_y, tile_x)
    b0 = group * EXAMPLES

    m = tl.arange(0, TILE)
    y_m, x_m = y0 + m // tile_x, x0 + m % tile_x
    k = tl.arange(0, K)
    n = tl.arange(0, STEP)
    window = tile_window(y0, x0, height, width, radius_y, radius_x, tile_y, tile_x, step_y, step_x)
    table_width = 2 * (radius_x + tile_x) - 1
    key_index = (radius_y + tile_y - 1 + y_m) * table_width + radius_x + tile_x - 1 + x_m
    e_offset = key_index[None, :, None] * K + k[None, None, :]
    bh = tl.arange(0, EXAMPLES * HEADS)
    b_bh, h_bh = b0 + bh // HEADS, bh % HEADS
    offset = offset64(b_bh, q_b, VEC) + offset64(h_bh, q_h, VEC)
    q_rows = q_ptr + (offset[None, None, :] + k[None, :, None])
    q_mask = ((b_bh < batch) & (h_bh < heads))[None, None, :] & (k < query_depth)[None, :, None]
    b = b0 + tl.arange(0, EXAMPLES)
    v = block * V + tl.arange(0, V)
    nh = tl.arange(0, STEP * HEADS)
    h_nh = nh % HEADS
    offset = offset64(b, g_b, VEC)[:, None, None] + offset64(h_nh, g_h, VEC)[None, :, None]
    g_rows = g_ptr + (offset + v[None, None, :])
    o_mask = (b < batch)[:, None, None] & (v < value_depth)[None, None, :]
    g_mask = o_mask & (h_nh < heads)[None, :, None]

    total = tl.zeros((EXAMPLES, TILE, V), tl.float32)
    for step in range(window[0] * window[1]):
        y_n, x_n, inside = step_positions(n, step, window)
        e = tl.load(table_ptr + (e_offset - ((y_n * table_width + x_n) * K)[:, None, None]))
        mask = q_mask & inside[:, None, None]
        q_step = q_rows + offset64(y_n * width + x_n, q_n, VEC)[:, None, None]
        q = tl.load(q_step, mask=mask, other=0.0)
        y_n, x_n, inside = step_positions(nh // HEADS, step, window)  # the same for each head
        mask = g_mask & inside[None, :, None]
        g_step = g_rows + offset64(y_n * width + x_n, g_n, VEC)[None, :, None]
        g = tl.load(g_step, mask=mask, other=0.0)
        logits = tl.reshape(dot(e, q).to(g.dtype), (STEP, TILE, EXAMPLES, HEADS))
        logits = tl.reshape(tl.permute(logits, (2, 1, 0, 3)), (EXAMPLES, TILE, STEP * HEADS))
        total = dot(logits, g, total)

    offset = offset64(b, o_b, VEC)[:, None] + offset64(y_m * width + x_m, o_n, VEC)[None, :]
    o_mask &= ((y_m < height) & (x_m < width))[None, :, None]
    o_rows = o_ptr + (offset[:, :, None] + v[None, None, :])
    tl.store(o_rows, total.to(o_ptr.dtype.element_ty), mask=o_mask)


@kernel
def grad_table(
    partial_ptr, g_ptr, q_ptr, v_ptr,
    g_b, g_h, g_n, q_b, q_h, q_n, v_b, v_n,
    value_depth, query_depth, batch, heads, height, width, radius_y, radius_x,
    step_y, step_x, row_groups, chunks, split_examples,
    TILE: tl.constexpr, EXAMPLES: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Compute P[x,(dy m),k] = sum of q[x,(b h),k] g[b,(x h),v] V[b,(y + dy, m),v] over y, b, h, v.

    x and m are columns. G[(x k),(b v)] = sum_h q g is the gradient of the lambdas, and the sum over
    b and v is one product.

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
