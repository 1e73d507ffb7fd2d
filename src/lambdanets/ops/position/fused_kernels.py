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
    """Return total + a @ b in float32, without TF32, which would lose precision."""
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def batched_dot(a, b):
    """Return a @ b, batched; a batch of one is one product, with rows divided among the warps."""
    total = tl.zeros((a.shape[0], a.shape[1], b.shape[2]), tl.float32)
    if a.shape[0] == 1:
        a_2d = tl.reshape(a, (a.shape[1], a.shape[2]))
        b_2d = tl.reshape(b, (b.shape[1], b.shape[2]))
        total_2d = dot(a_2d, b_2d, tl.reshape(total, (a.shape[1], b.shape[2])))
        total = tl.reshape(total_2d, (1, a.shape[1], b.shape[2]))
    else:
        total = dot(a, b, total)
    return total


@kernel
def query_order(
    table_ptr, a_ptr, v_ptr, c_ptr, o_ptr,
    a_b, a_h, a_n, v_b, v_n, c_b, c_k, o_b, o_h, o_n,
    value_depth, query_depth, batch, heads, height, width, radius_y, radius_x,
    tile_y, tile_x, step_y, step_x,
    TILE: tl.constexpr, EXAMPLES: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, VEC: tl.constexpr,
    CONTENT: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Compute y from a = q or, if GRADIENT, dq from a = g with all value channels in a program.

    y[b,(n h),v] = q c + sum_m S[b,(n h),m] V[b,m,v], logits S[n,(b h),m] = q[n,(b h),k] E[n,k,m]
    dq[n,(b h),k] = g c + sum_m T[n,(b h),m] E[n,m,k], T[b,(n h),m] = g[b,(n h),v] V[b,v,m]
    """
    value_depth *= VEC
    query_depth *= VEC
    blocks = 1 if GRADIENT else tl.cdiv(value_depth, V)
    block, y0, x0, group = program_tile(blocks, height, width, tile_y, tile_x)
    b0 = group * EXAMPLES

    if not GRADIENT:
        n = tl.arange(0, TILE)
        y_n, x_n = y0 + n // tile_x, x0 + n % tile_x
        in_grid = (y_n < height) & (x_n < width)
        bh = tl.arange(0, EXAMPLES * HEADS)
        b_bh, h_bh = b0 + bh // HEADS, bh % HEADS
        k = tl.arange(0, K)
    b = b0 + tl.arange(0, EXAMPLES)
    in_batch = (b < batch)[:, None, None]
    v = block * V + tl.arange(0, V)
    in_depth = (v < value_depth)[None, None, :]
    if GRADIENT:
        k = tl.arange(0, K)
        nh = tl.arange(0, TILE * HEADS)
        y_nh, x_nh = y0 + nh // HEADS // tile_x, x0 + nh // HEADS % tile_x
        h_nh = nh % HEADS
        offset = offset64(h_nh, a_h, VEC) + offset64(y_nh * width + x_nh, a_n, VEC)
        mask = (y_nh < height) & (x_nh < width) & (h_nh < heads)
        mask = in_batch & mask[None, :, None] & in_depth
        offset = offset64(b, a_b, VEC)[:, None, None] + offset[None, :, None] + v[None, None, :]
    else:
        offset = (offset64(b_bh, a_b, VEC) + offset64(h_bh, a_h, VEC))[None, :, None]
        offset += k[None, None, :]
        mask = ((b_bh < batch) & (h_bh < heads))[None, :, None] & (k < query_depth)[None, None, :]
        mask &= in_grid[:, None, None]
        offset += offset64(y_n * width + x_n, a_n, VEC)[:, None, None]
    a = tl.load(a_ptr + offset, mask=mask, other=0.0)

    n = tl.arange(0, TILE)
    m = tl.arange(0, STEP)
    y_n, x_n = y0 + n // tile_x, x0 + n % tile_x
    window = tile_window(y0, x0, height, width, radius_y, radius_x, tile_y, tile_x, step_y, step_x)
    # Query part of the index of each pair's embedding; each step adds the key part.
    table_width = 2 * (radius_x + tile_x) - 1
    query_index = (radius_y + tile_y - 1 - y_n) * table_width + radius_x + tile_x - 1 - x_n
    e_offset = query_index[:, None, None] * K + (k[None, None, :] if GRADIENT else k[None, :, None])
    v_rows = v_ptr + (offset64(b, v_b, VEC)[:, None, None] + v[None, None, :])

    shape: tl.constexpr = (TILE, EXAMPLES * HEADS, K) if GRADIENT else (EXAMPLES, TILE * HEADS, V)
    total = tl.zeros(shape, tl.float32)
    if CONTENT:
        offset = offset64(b, c_b, VEC)[:, None, None] + offset64(k, c_k, VEC)[None, :, None]
        mask = in_batch & (k < query_depth)[None, :, None] & in_depth
        c = tl.load(c_ptr + (offset + v[None, None, :]), mask=mask, other=0.0)
        if GRADIENT:
            term = tl.reshape(dot(a, tl.permute(c, (0, 2, 1))), (EXAMPLES, TILE, HEADS, K))
            total = tl.reshape(tl.permute(term, (1, 0, 2, 3)), shape)
        else:
            q = tl.permute(tl.reshape(a, (TILE, EXAMPLES, HEADS, K)), (1, 0, 2, 3))
            total = dot(tl.reshape(q, (EXAMPLES, TILE * HEADS, K)), c, total)
    for step in range(window[0] * window[1]):
        y_m, x_m, inside = step_positions(m, step, window)
        key = (y_m * table_width + x_m) * K
        e = tl.load(table_ptr + (e_offset + (key[None, :, None] if GRADIENT else key[None, None, :])))
        v_mask = in_batch & in_depth & inside[None, :, None]
        v_step = v_rows + offset64(y_m * width + x_m, v_n, VEC)[None, :, None]
        values = tl.load(v_step, mask=v_mask, other=0.0)
        if GRADIENT:
            products = batched_dot(a, tl.permute(values, (0, 2, 1))).to(e.dtype)
            products = tl.permute(tl.reshape(products, (EXAMPLES, TILE, HEADS, STEP)), (1, 0, 2, 3))
            total = dot(tl.reshape(products, (TILE, EXAMPLES * HEADS, STEP)), e, total)
        else:
            logits = dot(a, e).to(values.dtype)
            logits = tl.permute(tl.reshape(logits, (TILE, EXAMPLES, HEADS, STEP)), (1, 0, 2, 3))
            total = dot(tl.reshape(logits, (EXAMPLES, TILE * HEADS, STEP)), values, total)

    if GRADIENT:
        bh = tl.arange(0, EXAMPLES * HEADS)
        b_bh, h_bh = b0 + bh // HEADS, bh % HEADS
        offset = (offset64(b_bh, o_b, VEC) + offset64(h_bh, o_h, VEC))[None, :]
        offset += offset64(y_n * width + x_n, o_n, VEC)[:, None]
        mask = ((y_n < height) & (x_n < width))[:, None]
        mask &= ((b_bh < batch) & (h_bh < heads))[None, :]
        mask = mask[:, :, None] & (k < query_depth)[None, None, :]
        offset = offset[:, :, None] + k[None, None, :]
    else:
        nh = tl.arange(0, TILE * HEADS)
        h_nh = nh % HEADS
        y_nh, x_nh = y0 + nh // HEADS // tile_x, x0 + nh // HEADS % tile_x
        offset = offset64(h_nh, o_h, VEC) + offset64(y_nh * width + x_nh, o_n, VEC)
        offset = offset64(b, o_b, VEC)[:, None, None] + offset[None, :, None] + v[None, None, :]
        mask = in_batch & in_depth
        mask &= ((y_nh < height) & (x_nh < width) & (h_nh < heads))[None, :, None]
    tl.store(o_ptr + offset, total.to(o_ptr.dtype.element_ty), mask=mask)


@kernel
def lambda_order(
    table_ptr, a_ptr, v_ptr, c_ptr, o_ptr,
    a_b, a_h, a_n, v_b, v_n, c_b, c_k, o_b, o_h, o_n,
    value_depth, query_depth, batch, heads, height, width, radius_y, radius_x,
    tile_y, tile_x, step_y, step_x,
    TILE: tl.constexpr, EXAMPLES: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, VEC: tl.constexpr,
    CONTENT: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Compute the same as `query_order`, by lambdas in registers.

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
    query_index = (radius_y + tile_y - 1 - y_nk) * table_width + radius_x + tile_x - 1 - x_nk
    e_offset = (query_index * K + nk % K)[None, :]
    v_rows = v_ptr + (offset64(b0 + bv // V, v_b, VEC) + v0 + bv % V)[:, None]
    v_mask = ((b0 + bv // V < batch) & (v0 + bv % V < value_depth))[:, None]
    shape: tl.constexpr = (TILE * K, EXAMPLES * V) if GRADIENT else (EXAMPLES * V, TILE * K)
    lambdas = tl.zeros(shape, tl.float32)
    for step in range(window[0] * window[1]):
        y_m, x_m, inside = step_positions(m, step, window)
        e = tl.load(table_ptr + (e_offset + ((y_m * table_width + x_m) * K)[:, None]))
        in_both = v_mask & inside[None, :]
        v_step = v_rows + offset64(y_m * width + x_m, v_n, VEC)[None, :]
        values = tl.load(v_step, mask=in_both, other=0.0)
        x, y = (tl.trans(e), tl.trans(values)) if GRADIENT else (values, e)
        lambdas = dot(x, y, lambdas)

    lambdas = tl.reshape(lambdas, (TILE, K, EXAMPLES, V) if GRADIENT else (EXAMPLES, V, TILE, K))
    b = b0 + tl.arange(0, EXAMPLES)
    v = v0 + tl.arange(0, V)
    n = tl.arange(0, TILE)
    y_n, x_n = y0 + n // tile_x, x0 + n % tile_x
    k = tl.arange(0, K)
    in_grid = (y_n < height) & (x_n < width)
    in_batch = b < batch
    if GRADIENT:
        if CONTENT:
            offset = offset64(k, c_k, VEC)[:, None, None] + offset64(b, c_b, VEC)[None, :, None]
            mask = (k < query_depth)[:, None, None] & in_batch[None, :, None]
            mask &= (v < value_depth)[None, None, :]
            c = tl.load(c_ptr + (offset + v[None, None, :]), mask=mask, other=0.0).to(tl.float32)
            lambdas += c[None, :, :, :]
        n = y_n * width + x_n
        a_offset = offset64(n, a_n, VEC)[:, None, None] + offset64(b, a_b, VEC)[None, :, None]
        a_offset += v[None, None, :]
        a_mask = in_grid[:, None, None] & in_batch[None, :, None] & (v < value_depth)[None, None, :]
        o_offset = offset64(n, o_n, VEC)[:, None, None] + offset64(b, o_b, VEC)[None, None, :]
        o_offset += k[None, :, None]
        o_mask = in_grid[:, None, None] & (k < query_depth)[None, :, None] & in_batch[None, None, :]
    else:
        if CONTENT:
            offset = offset64(b, c_b, VEC)[:, None, None] + offset64(k, c_k, VEC)[None, None, :]
            mask = in_batch[:, None, None] & (v < value_depth)[None, :, None]
            mask &= (k < query_depth)[None, None, :]
            c = tl.load(c_ptr + (offset + v[None, :, None]), mask=mask, other=0.0).to(tl.float32)
            lambdas += c[:, :, None, :]
        n = y_n * width + x_n
        a_offset = offset64(b, a_b, VEC)[:, None, None] + offset64(n, a_n, VEC)[None, :, None]
        a_offset += k[None, None, :]
        a_mask = in_batch[:, None, None] & in_grid[None, :, None] & (k < query_depth)[None, None, :]
        o_offset = offset64(b, o_b, VEC)[:, None, None] + offset64(n, o_n, VEC)[None, None, :]
        o_offset += v[None, :, None]
        o_mask = in_batch[:, None, None] & (v < value_depth)[None, :, None] & in_grid[None, None, :]
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
