/* The position interaction of a lambda layer by fused Fourier transforms; compiled once per instruction set and type.
 *
 * Transforms. w f n means 2 pi (f1 n1 / N1 + f2 n2 / N2); * is the conjugate. Inputs are padded with zeros (native_lengths.py).
 *   V^[f]   = sum_n V[n] e^{-iwfn}                      transform_values: real, one channel per lane of a vector
 *   R'^[f]  = 1 / (N1 N2) sum_d R'[d] e^{+iwfd}         R' = R_k + i R_{k+1}: two query depths in one transform
 *   lambda' = sum_f sum_(z,u) R'^[f] V^[f] e^{+iwfn}    lambda_columns, lambda_row; z are offsets in depth
 *           = sum_d R'[d] V[n + d] = lambda_k + i lambda_{k+1}
 * The plus in R'^ makes it a correlation. native.py computes R'^ with the only division, so no transform here divides.
 * Sequences are maps, n = n1 + N1 n2 and f = N2 f1 + f2, with factors `cross` between the transforms of the two axes.
 *
 * Inverse. With E(a + ib) = b + ia, sum_f z[f] e^{+iwfn} = E(DFT(E z)): codelets need only the forward direction.
 * LOAD_PRODUCT and `multiply` store E(R'^ V^), both axes are transformed forward, and the last E is left out: the map T
 * and the lambdas are exchanged, (lambda_{k+1}, lambda_k), where they are read. A content lambda is a constant, so it
 * is added to T at f2 = 0. Gradients of lambdas and D are not exchanged; G is at the start of its inverse.
 *
 * Half spectrum. V is real, so V^[-f] = V^[f]*. Only columns f2 <= N2 / 2 are stored; column f2 above is column
 * N2 - f2 at index `mirror` - f1, conjugated, where mirror = N1, and N1 stands for 0. In a sequence
 * -f = N2 (N1 - 1 - f1) + N2 - f2, so mirror = N1 - 1.
 * Two rows a, b of values are one complex row with Z = DFT(a + ib): a^[f] = (Z[f] + Z[-f]*) / 2 and
 * b^[f] = (Z[f] - Z[-f]*) / 2i.
 *
 * Forward, per task (example, VL value channels, tile of the grid): V^ of each slice of depth and each u, once.
 * For each pair of depths: for each f2, the sum of products over (depth offset, u), transformed back over f1 to T; each
 * row of T, transformed back over f2 to lambdas in the first-level cache; y[h,n] += q_k lambda_k + q_{k+1} lambda_{k+1}.
 *
 * Backward. dlambda' = sum_h (q_k + i q_{k+1}) g with g the gradient of y, and D[f] = sum_n dlambda'[n] e^{-iwfn}. Then
 *   grad q_k = sum over lanes of g lambda_k           grad content = D[0]
 *   grad R'^[f] = sum over lanes of V^[f]* D[f]       native.py transforms it back to the table
 *   G[f] = R'^[f]* D[f]                               gradient of V^[f]
 *   grad V[n] = Re sum_f G[f] e^{+iwfn}
 * Re(z) = Re(z*), so G[f] of the columns above N2 / 2 is added as G[f]* at -f, to those that are stored. Two rows a, b
 * of the sum over f1 are again one complex row: Re sum_{f <= N2/2} a[f] e^{+iwfx} is the sum over all f of a[f] / 2 and,
 * at -f, a[f]* / 2, so Z[f] = (a + ib) / 2 and Z[-f] = (a* + ib*) / 2; f = 0 and f = N2 / 2 are their own mirror
 * images, with Z = Re a + i Re b. Its real part is row a, its imaginary part row b.
 *
 * Sums over lanes. sum_lanes adds the lanes of VL vectors at once, by a butterfly: with T = 1, 2, 4 .. VL / 2,
 * COMBINE(a, b, T) has in lane i the sum x[i] + x[i xor T] of x = a, or of x = b if bit T of i is set. Each step halves
 * the vectors, and lane i of the last one is the sum of p[i].
 *
 * Names: p problem, w work memory, t tile, m or team the threads of a task, x y columns and rows, h heads; p->spectrum is
 * R'^, w->spectrum V^, w->grad G. libraries.py defines REAL, VL (lanes) and KERNEL (suffix of names). A transform of
 * length A B is pass 1, B DFTs of length A with twiddles, and pass 2, A DFTs of length B; a third pass splits pass 2.
 */
#include "native.h"

typedef REAL V __attribute__((vector_size(VL * sizeof(REAL))));
typedef REAL VU __attribute__((vector_size(VL * sizeof(REAL)), aligned(sizeof(REAL))));

#include "codelets.h"

/* Stores past the cache, for maps larger than it. Barriers fence. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#define STREAM(p, x) __builtin_nontemporal_store(x, p)
#endif
#endif
#ifndef STREAM
#define STREAM(p, x) (*(p) = (x))
#endif

#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#define NAME(x) CAT(CAT(x, _), KERNEL)

/* Pass 1: DFTs of length A over inputs f = B fa + fb, which LOAD reads to r[fa], i[fa]; then twiddles; tmp[fb][na].
 * `factors` and `n` are those of LOAD. */
#define PASS1(VARIANT, A, LOAD)                                                                         \
  static void NAME(VARIANT##_##A)(const V *in, ptrdiff_t stride, int B, V *tmp, const REAL *tw,         \
                                  const REAL *factors, ptrdiff_t n) {                                   \
    for (int fb = 0; fb < B; fb++) {                                                                    \
      V r[A], i[A];                                                                                     \
      UNROLL for (int fa = 0; fa < A; fa++) {                                                           \
        int f = B * fa + fb;                                                                            \
        LOAD(A)                                                                                         \
      }                                                                                                 \
      dft_##A(r, i);                                                                                    \
      V *o = tmp + 2 * A * fb;                                                                          \
      const REAL *t = tw + 2 * A * fb;                                                                  \
      o[0] = r[0];                                                                                      \
      o[1] = i[0];                                                                                      \
      UNROLL for (int na = 1; na < A; na++) {                                                           \
        REAL c = t[2 * na], s = t[2 * na + 1];                                                          \
        o[2 * na] = r[na] * c - i[na] * s;                                                              \
        o[2 * na + 1] = r[na] * s + i[na] * c;                                                          \
      }                                                                                                 \
    }                                                                                                   \
  }
#define LOAD_PLAIN(A)                       \
  const V *p = in + (ptrdiff_t)f * stride; \
  r[fa] = p[0];                             \
  i[fa] = p[1];
/* inputs from n on are zero */
static const V NAME(zeros)[2] __attribute__((aligned(64)));
#define LOAD_LIMITED(A)                                    \
  const V *p = f < n ? in + f * stride : NAME(zeros);      \
  r[fa] = p[0];                                            \
  i[fa] = p[1];
/* inputs times factors[f n], a `cross` twiddle */
#define LOAD_TURNED(A)                                       \
  const V *p = in + f * stride;                              \
  REAL c = factors[2 * f * n], s = factors[2 * f * n + 1];   \
  r[fa] = p[0] * c - p[1] * s;                               \
  i[fa] = p[0] * s + p[1] * c;
/* E(V^[f] R'^[f]): in is a column of V^, factors one of R'^ */
#define LOAD_PRODUCT(A)                          \
  V vr = in[2 * f], vi = in[2 * f + 1];          \
  REAL a = factors[2 * f], b = factors[2 * f + 1]; \
  r[fa] = vi * a + vr * b;                       \
  i[fa] = vr * a - vi * b;
/* the same with V^[-f] = V^[m]* */
#define LOAD_MIRRORED(A)                         \
  int m = n - f < A * B ? n - f : 0;             \
  V vr = in[2 * m], vi = in[2 * m + 1];          \
  REAL a = factors[2 * f], b = factors[2 * f + 1]; \
  r[fa] = vr * b - vi * a;                       \
  i[fa] = vr * a + vi * b;
#define PASSES1(A)                  \
  PASS1(plain, A, LOAD_PLAIN)       \
  PASS1(limited, A, LOAD_LIMITED)   \
  PASS1(turned, A, LOAD_TURNED)     \
  PASS1(product, A, LOAD_PRODUCT)   \
  PASS1(mirrored, A, LOAD_MIRRORED)
/* pass 2: DFTs of length B over fb; outputs na + A nb below `limit` */
#define PASS2(B)                                                                           \
  static void NAME(pass2_##B)(const V *tmp, int A, V *out, ptrdiff_t stride, int limit, ptrdiff_t streamed) { \
    for (int na = 0; na < A; na++) {                                                       \
      V r[B], i[B];                                                                        \
      UNROLL for (int fb = 0; fb < B; fb++) {                                              \
        const V *p = tmp + 2 * ((ptrdiff_t)A * fb + na);                                        \
        r[fb] = p[0];                                                                      \
        i[fb] = p[1];                                                                      \
      }                                                                                    \
      dft_##B(r, i);                                                                       \
      if (stride >= streamed) {                                                            \
        UNROLL for (int nb = 0; nb < B; nb++)                                              \
          if (na + A * nb < limit) {                                                       \
            V *p = out + (na + A * nb) * stride;                                           \
            STREAM(p, r[nb]);                                                              \
            STREAM(p + 1, i[nb]);                                                          \
          }                                                                                \
        __asm__ volatile(""); /* else clang merges them with the stores below */           \
        continue;                                                                          \
      }                                                                                    \
      UNROLL for (int nb = 0; nb < B; nb++)                                                \
        if (na + A * nb < limit) {                                                         \
          V *p = out + (na + A * nb) * stride;                                             \
          p[0] = r[nb];                                                                    \
          p[1] = i[nb];                                                                    \
        }                                                                                  \
    }                                                                                      \
  }
FOR_EACH_RADIX(PASSES1)
FOR_EACH_RADIX(PASS2)

typedef void (*NAME(pass1_t))(const V *, ptrdiff_t, int, V *, const REAL *, const REAL *, ptrdiff_t);
typedef void (*NAME(pass2_t))(const V *, int, V *, ptrdiff_t, int, ptrdiff_t);
/* codelets of one radix */
static const struct {
  NAME(pass1_t) plain, limited, turned, product, mirrored;
  NAME(pass2_t) pass2;
} NAME(radix)[17] = {
#define X(n) [n] = {NAME(plain_##n), NAME(limited_##n), NAME(turned_##n), NAME(product_##n), NAME(mirrored_##n), NAME(pass2_##n)},
    FOR_EACH_RADIX(X)
#undef X
};

/* ---- one axis ---- */

/* the passes after pass 1, from tmp; outputs below `limit` */
static void NAME(finish)(const axis *a, V *tmp, V *tmp2, V *out, ptrdiff_t stride, int limit) {
  if (a->levels == 2) {
    NAME(radix)[a->f[1]].pass2(tmp, a->f[0], out, stride, limit, a->streamed);
    return;
  }
  for (int n = 0; n < a->f[0] && n < limit; n++) {
    NAME(radix)[a->f[1]].plain(tmp + 2 * n, 2 * a->f[0], a->f[2], tmp2, a->twiddles[1], 0, 0);
    NAME(radix)[a->f[2]].pass2(tmp2, a->f[1], out + n * stride, stride * a->f[0], (limit - n + a->f[0] - 1) / a->f[0], a->streamed);
  }
}

/* inputs from limit_in on are zero */
static void NAME(dft)(const axis *a, V *tmp, const V *in, ptrdiff_t in_stride, int limit_in, V *out, ptrdiff_t out_stride,
                      int limit_out) {
  int rest = a->n / a->f[0];
  if (limit_in < a->n)
    NAME(radix)[a->f[0]].limited(in, in_stride, rest, tmp, a->twiddles[0], 0, limit_in);
  else
    NAME(radix)[a->f[0]].plain(in, in_stride, rest, tmp, a->twiddles[0], 0, 0);
  NAME(finish)(a, tmp, tmp + 2 * a->n, out, out_stride, limit_out);
}

/* inputs times cross[f cross_stride] */
static void NAME(dft_twiddled)(const axis *a, V *tmp, const V *in, ptrdiff_t in_stride, const REAL *cross, ptrdiff_t cross_stride,
                               V *out, ptrdiff_t out_stride, int limit_out) {
  NAME(radix)[a->f[0]].turned(in, in_stride, a->n / a->f[0], tmp, a->twiddles[0], cross, cross_stride);
  NAME(finish)(a, tmp, tmp + 2 * a->n, out, out_stride, limit_out);
}

/* ---- tasks and working memory ---- */

/* Outputs y0 .. y0 + rows - 1, x0 .. x0 + cols - 1. Inputs: index i of an axis holds position start + i if i < ahead,
 * start + i - N if i >= N - behind, else zero. Sequences have rows = 1 and the axis of m = m1 + N1 m2. */
typedef struct {
  int example, channel, lanes, tile;
  ptrdiff_t start[2], count[2], ahead[2], behind[2];
} NAME(part);

typedef struct {
  V *spectrum; /* V^: [slice][u][f2 <= N2/2][f1] complex */
  V *map;      /* T: [row][pair][N2] complex */
  V *tmp, *line, *lam;
  V *y;        /* [local position][h], for incomplete blocks and for gradients of outputs */
  V *grad;     /* backward: gradient of V^ */
  V *grad_content;
  REAL *dq;    /* [local position][h][k4] */
  REAL *grad_table;
  int *position; /* of each item (x, head) of a row */
} NAME(work);

static inline int NAME(num_blocks)(const problem *p) { return (p->v + VL - 1) / VL; }
static inline ptrdiff_t NAME(map_stride)(const problem *p) { return 2 * ((ptrdiff_t)p->G * p->axes[1].n + 1); }
static inline size_t NAME(spectrum_size)(const problem *p) { return 2 * (size_t)(p->axes[1].n / 2 + 1) * p->axes[0].n; }
static inline size_t NAME(table_size)(const problem *p) {
  return 2 * (size_t)p->depth_scope * p->u * p->pairs * p->axes[0].n * p->axes[1].n;
}
static inline ptrdiff_t NAME(padded_depth)(const problem *p) { return (p->k + 3) / 4 * 4; }
static inline int NAME(dq_direct)(const problem *p) { return p->k % 4 == 0 && NAME(num_blocks)(p) == 1; }

__attribute__((visibility("hidden"))) int NAME(lanes)(void) { return VL; }
__attribute__((visibility("hidden"))) int NAME(num_tasks)(const problem *p) { return p->b * NAME(num_blocks)(p) * num_tiles(p); }

static NAME(part) NAME(part_of)(const problem *p, int task) {
  int tiles = num_tiles(p), blocks = NAME(num_blocks)(p);
  NAME(part) t = {task / tiles / blocks, task / tiles % blocks * VL, VL, task % tiles};
  if (p->v - t.channel < VL) t.lanes = p->v - t.channel;
  int index[2] = {t.tile / p->tiles[1], t.tile % p->tiles[1]}, sides[2] = {p->H, p->W};
  for (int d = 0; d < 2; d++) {
    ptrdiff_t left = sides[d] - (t.start[d] = (ptrdiff_t)index[d] * p->tile[d]);
    t.count[d] = left < p->tile[d] ? left : p->tile[d];
    t.ahead[d] = left;
    t.behind[d] = 0;
    if (p->tiles[d] > 1) {
      if (p->tile[d] + p->after[d] < left) t.ahead[d] = p->tile[d] + p->after[d];
      t.behind[d] = p->before[d] < t.start[d] ? p->before[d] : t.start[d];
    }
  }
  return t;
}

/* shared by the team, then the pieces of each member */
static size_t NAME(carve)(const problem *p, NAME(work) *w, char *base, int rank, int size) {
  int N1 = p->axes[0].n, N2 = p->axes[1].n, longest = N1 > N2 ? N1 : N2;
  size_t at = 0, bytes, n = (size_t)p->depth * p->tile[0] * p->tile[1], slots = (size_t)p->depth * p->u;
  int rows = p->sequence ? N1 : p->tile[0], cols = p->sequence ? N2 : p->tile[1];
  int copied = p->v % VL != 0 || p->os_v != 1 || p->grad_output;
#define TAKE(field, type, count)                              \
  bytes = (size_t)(count) * sizeof(type);                     \
  if (w) {                                                    \
    w->field = (type *)(base + at);                           \
    FORBID(base + at + bytes, (bytes + 127) / 128 * 128 + GAP - bytes); \
  }                                                           \
  at += (bytes + 127) / 128 * 128 + GAP;
  TAKE(spectrum, V, slots * NAME(spectrum_size)(p))
  TAKE(map, V, (size_t)rows * NAME(map_stride)(p))
  TAKE(y, V, copied ? n * p->h : 0)
  if (p->grad_output) {
    TAKE(grad, V, slots * NAME(spectrum_size)(p))
    TAKE(grad_content, V, 2 * p->pairs)
    TAKE(dq, REAL, NAME(dq_direct)(p) ? 0 : n * p->h * NAME(padded_depth)(p))
    TAKE(grad_table, REAL, NAME(table_size)(p))
  }
  for (int r = 0; r < size; r++) {
    if (r == rank + 1) w = 0;
    TAKE(tmp, V, 4 * longest)
    TAKE(line, V, 2 * longest)
    TAKE(lam, V, 4 * (size_t)cols)
    TAKE(position, int, p->grad_output ? (size_t)cols * p->h : 0)
  }
#undef TAKE
  return at;
}
__attribute__((visibility("hidden"))) size_t NAME(scratch_bytes)(const problem *p, int size) { return NAME(carve)(p, 0, 0, 0, size); }

INLINE V NAME(load_lanes)(const REAL *p, ptrdiff_t stride, int lanes) {
  if (lanes == VL && stride == 1) return *(const VU *)p;
  V x = {0};
  for (int l = 0; l < lanes; l++) x[l] = p[l * stride];
  return x;
}
INLINE void NAME(store_lanes)(REAL *p, ptrdiff_t stride, V x, int lanes) {
  if (lanes == VL && stride == 1)
    *(VU *)p = x;
  else
    for (int l = 0; l < lanes; l++) p[l * stride] = x[l];
}

/* Positions of row y of T: global + step x in the example, local + step x in the part, for x < count */
typedef struct {
  ptrdiff_t global, local, step;
  int count;
} NAME(row);
INLINE NAME(row) NAME(row_of)(const problem *p, const NAME(part) *t, int z, int y) {
  if (p->sequence) {
    int N1 = p->axes[0].n;
    return (NAME(row)){t->start[1] + y, y, N1, y < t->count[1] ? (int)((t->count[1] - y + N1 - 1) / N1) : 0};
  }
  return (NAME(row)){((ptrdiff_t)z * p->H + t->start[0] + y) * p->W + t->start[1], (z * t->count[0] + y) * t->count[1], 1,
                     (int)t->count[1]};
}
static inline int NAME(map_rows)(const problem *p, const NAME(part) *t) { return p->sequence ? p->axes[0].n : (int)t->count[0]; }

/* position in a slice of input (i1, i2) of the transform, or -1 */
INLINE ptrdiff_t NAME(source_axis)(const NAME(part) *t, int d, ptrdiff_t i, ptrdiff_t n) {
  return i < t->ahead[d] ? t->start[d] + i : i >= n - t->behind[d] ? t->start[d] + i - n : -1;
}
INLINE ptrdiff_t NAME(source)(const problem *p, const NAME(part) *t, int i1, int i2) {
  ptrdiff_t n1 = p->axes[0].n, n2 = p->axes[1].n;
  if (p->sequence) return NAME(source_axis)(t, 1, i1 + n1 * i2, n1 * n2);
  ptrdiff_t y = NAME(source_axis)(t, 0, i1, n1), x = NAME(source_axis)(t, 1, i2, n2);
  return y < 0 || x < 0 ? -1 : y * p->W + x;
}
/* does row i1 of the input hold any position? */
static inline int NAME(is_row)(const problem *p, const NAME(part) *t, int i1) {
  return p->sequence || (i1 < p->axes[0].n && NAME(source_axis)(t, 0, i1, p->axes[0].n) >= 0);
}
static inline int NAME(row_limit)(const problem *p, const NAME(part) *t) {
  return p->sequence || t->behind[0] ? p->axes[0].n : (int)t->ahead[0];
}

/* ---- forward ---- */

INLINE void NAME(turn)(V *z, const REAL *c) {
  V r = z[0] * c[0] - z[1] * c[1];
  z[1] = z[0] * c[1] + z[1] * c[0];
  z[0] = r;
}

/* V^ of one slice; two rows share one complex transform */
static __attribute__((noinline)) void NAME(transform_values)(const problem *p, NAME(work) *w, const NAME(part) *t, const REAL *values,
                                                             V *spectrum, team *m) {
  const axis *a1 = &p->axes[0], *a2 = &p->axes[1];
  int N1 = a1->n, N2 = a2->n, F2 = N2 / 2 + 1, limit = NAME(row_limit)(p, t);
  const REAL *cross = p->cross;
  for (int y = share((limit + 1) / 2, m, 0) * 2; y < share((limit + 1) / 2, m, 1) * 2; y += 2) {
    int pair = y + 1 < limit;
    if (!NAME(is_row)(p, t, y) && !(pair && NAME(is_row)(p, t, y + 1))) { /* between the two ends of a tile */
      for (int f = 0; f < F2; f++) memset(spectrum + 2 * ((ptrdiff_t)f * N1 + y), 0, (pair ? 4 : 2) * sizeof(V));
      continue;
    }
    int limit_in = p->sequence || t->behind[1] ? N2 : (int)t->ahead[1];
    for (int x = 0; x < limit_in; x++) {
      ptrdiff_t a = NAME(source)(p, t, y, x), b = pair ? NAME(source)(p, t, y + 1, x) : -1;
      w->line[2 * x] = a >= 0 ? NAME(load_lanes)(values + a * p->vs_n, p->vs_v, t->lanes) : (V){0};
      w->line[2 * x + 1] = b >= 0 ? NAME(load_lanes)(values + b * p->vs_n, p->vs_v, t->lanes) : (V){0};
    }
    NAME(dft)(a2, w->tmp, w->line, 2, limit_in, w->line, 2, N2);
    for (int f = 0; f < F2; f++) {
      int n = f == 0 ? 0 : N2 - f;
      V zr = w->line[2 * f], zi = w->line[2 * f + 1], cr = w->line[2 * n], ci = -w->line[2 * n + 1];
      V *o = spectrum + 2 * ((ptrdiff_t)f * N1 + y);
      o[0] = (zr + cr) * (REAL)0.5;
      o[1] = (zi + ci) * (REAL)0.5;
      if (cross) NAME(turn)(o, cross + 2 * ((ptrdiff_t)y * N2 + f));
      if (pair) { /* (z - c) / 2i */
        o[2] = (zi - ci) * (REAL)0.5;
        o[3] = (cr - zr) * (REAL)0.5;
        if (cross) NAME(turn)(o + 2, cross + 2 * ((ptrdiff_t)(y + 1) * N2 + f));
      }
    }
  }
  barrier(m);
  for (int f = share(F2, m, 0); f < share(F2, m, 1); f++) {
    V *column = spectrum + 2 * (ptrdiff_t)f * N1;
    NAME(dft)(a1, w->tmp, column, 2, limit, column, 2, N1);
  }
}

/* A product V^ R'^ of slices: slot of V^, and whether there is such a slice. */
INLINE int NAME(term)(const problem *p, int z, int index, int *slot) {
  int source = z + index / p->u - p->depth_before;
  *slot = source * p->u + index % p->u;
  return source >= 0 && source < p->depth;
}
INLINE ptrdiff_t NAME(table_column)(const problem *p, int table_slot, int pair, int f) {
  return 2 * (((ptrdiff_t)table_slot * p->pairs + pair) * p->axes[1].n + f) * p->axes[0].n;
}

/* line (+)= E(V^ R'^), `mirrored` for columns that are not stored */
static __attribute__((noinline)) void NAME(multiply)(const V *v, const REAL *R, V *line, int N, int mirrored, int mirror, int fresh) {
  for (int f = 0; f < N; f++) {
    int m = !mirrored ? f : mirror - f < N ? mirror - f : 0;
    V vr = v[2 * m], vi = mirrored ? -v[2 * m + 1] : v[2 * m + 1];
    V re = vi * R[2 * f] + vr * R[2 * f + 1], im = vr * R[2 * f] - vi * R[2 * f + 1];
    line[2 * f] = fresh ? re : line[2 * f] + re;
    line[2 * f + 1] = fresh ? im : line[2 * f + 1] + im;
  }
}

INLINE int NAME(mirror)(const problem *p) { return p->axes[0].n - p->sequence; }

/* T of slice z for pairs first .. first + count - 1 */
static __attribute__((noinline)) void NAME(lambda_columns)(const problem *p, NAME(work) *w, const NAME(part) *t, int z, int first,
                                                           int count, team *m) {
  const axis *a = &p->axes[0];
  int N1 = a->n, N2 = p->axes[1].n, F2 = N2 / 2 + 1, terms = p->depth_scope * p->u, rows = NAME(map_rows)(p, t);
  ptrdiff_t ms = NAME(map_stride)(p);
  const REAL *spectrum = p->spectrum;
  for (int f = share(N2, m, 0); f < share(N2, m, 1); f++) {
    int mirrored = f >= F2, column = mirrored ? N2 - f : f, slot;
    for (int g = 0; g < count; g++) {
      V *out = w->map + 2 * ((ptrdiff_t)g * N2 + f);
      if (terms == 1) {
        const V *v = w->spectrum + z * NAME(spectrum_size)(p) + 2 * (ptrdiff_t)column * N1;
        const REAL *R = spectrum + NAME(table_column)(p, 0, first + g, f);
        (mirrored ? NAME(radix)[a->f[0]].mirrored : NAME(radix)[a->f[0]].product)(v, 2, N1 / a->f[0], w->tmp, a->twiddles[0], R,
                                                                                  NAME(mirror)(p));
        NAME(finish)(a, w->tmp, w->tmp + 2 * N1, out, ms, rows);
        continue;
      }
      int fresh = 1;
      for (int i = 0; i < terms; i++)
        if (NAME(term)(p, z, i, &slot)) {
          NAME(multiply)(w->spectrum + slot * NAME(spectrum_size)(p) + 2 * (ptrdiff_t)column * N1,
                         spectrum + NAME(table_column)(p, i, first + g, f), w->line, N1, mirrored, NAME(mirror)(p), fresh);
          fresh = 0;
        }
      NAME(dft)(a, w->tmp, w->line, 2, N1, out, ms, rows);
    }
  }
}

static void NAME(add_content)(const problem *p, NAME(work) *w, const NAME(part) *t, int first, int count, int y) {
  if (!p->content) return;
  const REAL *content = (const REAL *)p->content + t->example * p->cs_b + t->channel;
  for (int g = 0; g < count; g++) {
    int k = 2 * (first + g);
    V even = NAME(load_lanes)(content + (ptrdiff_t)k * p->cs_k, 1, t->lanes);
    V odd = k + 1 < p->k ? NAME(load_lanes)(content + (ptrdiff_t)(k + 1) * p->cs_k, 1, t->lanes) : (V){0};
    V *m = w->map + (ptrdiff_t)y * NAME(map_stride)(p) + 2 * (ptrdiff_t)g * p->axes[1].n;
    m[0] += odd; /* exchanged parts */
    m[1] += even;
  }
}

/* Copy row r of the outputs (from memory, or to it with `store`). Channels that are maps
 * are copied one by one: the row is in the cache, and memory is accessed along the positions. */
static void NAME(copy_row)(NAME(row) r, int h, int lanes, V *y, REAL *o, ptrdiff_t o_n, ptrdiff_t o_h, ptrdiff_t o_v, int store) {
  y += r.local * h;
  o += r.global * o_n;
  if (o_v == 1) {
    for (int x = 0; x < r.count; x++)
      for (int j = 0; j < h; j++) {
        V *from = y + r.step * x * h + j;
        REAL *at = o + r.step * x * o_n + j * o_h;
        if (store)
          NAME(store_lanes)(at, 1, *from, lanes);
        else
          *from = NAME(load_lanes)(at, 1, lanes);
      }
    return;
  }
  for (int j = 0; j < h; j++)
    for (int l = 0; l < VL; l++) {
      REAL *lane = (REAL *)(y + j) + l, *at = o + j * o_h + l * o_v;
      ptrdiff_t y_x = r.step * h * VL, o_x = r.step * o_n;
      if (l >= lanes)
        for (int x = 0; x < r.count; x++) lane[x * y_x] = 0;
      else if (store)
        for (int x = 0; x < r.count; x++) at[x * o_x] = lane[x * y_x];
      else
        for (int x = 0; x < r.count; x++) lane[x * y_x] = at[x * o_x];
    }
}

/* inverse DFT of one row of T: lam[x] = (lambda_{k+1}, lambda_k) for x < count */
INLINE void NAME(lambda_row)(const problem *p, NAME(work) *w, int y, int g, V *lam, int count) {
  int N2 = p->axes[1].n;
  const V *m = w->map + (ptrdiff_t)y * NAME(map_stride)(p) + 2 * (ptrdiff_t)g * N2;
  if (p->cross)
    NAME(dft_twiddled)(&p->axes[1], w->tmp, m, 2, (const REAL *)p->cross + 2 * (ptrdiff_t)y * N2, 1, lam, 2, count);
  else
    NAME(dft)(&p->axes[1], w->tmp, m, 2, N2, lam, 2, count);
}

/* y[x][h] (+)= sum over COUNT pairs of q lambda; lam: pairs of 2 W vectors. With `odd`, the last depth does not exist. */
#define APPLY(COUNT)                                                                                                \
  static __attribute__((noinline)) void NAME(apply_##COUNT)(const V *lam, ptrdiff_t lam_stride, const REAL *q,      \
                                                            ptrdiff_t q_x, ptrdiff_t q_h, ptrdiff_t q_k, REAL *y,   \
                                                            ptrdiff_t y_x, ptrdiff_t y_h, int W, int h, int fresh,  \
                                                            int odd) {                                              \
    ptrdiff_t last = odd ? 0 : q_k;                                                                                 \
    for (int x = 0; x < W; x++) {                                                                                   \
      V a[COUNT], b[COUNT];                                                                                         \
      UNROLL for (int g = 0; g < COUNT; g++) {                                                                      \
        b[g] = lam[g * lam_stride + 2 * x];                                                                         \
        a[g] = lam[g * lam_stride + 2 * x + 1];                                                                     \
      }                                                                                                             \
      if (odd) b[COUNT - 1] = (V){0};                                                                               \
      for (int j = 0; j < h; j++) {                                                                                 \
        VU *o = (VU *)(y + x * y_x + j * y_h);                                                                      \
        const REAL *c = q + x * q_x + j * q_h;                                                                      \
        V s = fresh ? (V){0} : *o;                                                                                  \
        UNROLL for (int g = 0; g < COUNT; g++) {                                                                    \
          s += a[g] * c[2 * g * q_k];                                                                               \
          s += b[g] * c[2 * g * q_k + (g == COUNT - 1 ? last : q_k)];                                               \
        }                                                                                                           \
        *o = s;                                                                                                     \
      }                                                                                                             \
    }                                                                                                               \
  }
APPLY(1)
APPLY(2)

static void NAME(values_spectra)(const problem *p, NAME(work) *w, const NAME(part) *t, team *m) {
  ptrdiff_t slice = (ptrdiff_t)p->H * p->W;
  const REAL *values = (const REAL *)p->values + t->example * p->vs_b + t->channel * p->vs_v;
  for (int z = 0; z < p->depth; z++)
    for (int u = 0; u < p->u; u++)
      NAME(transform_values)(p, w, t, values + z * slice * p->vs_n + u * p->vs_u,
                             w->spectrum + ((size_t)z * p->u + u) * NAME(spectrum_size)(p), m);
  barrier(m);
}

__attribute__((visibility("hidden"))) void NAME(forward_task)(const problem *p, char *scratch, int task, order *turns, team *m) {
  NAME(work) w;
  NAME(carve)(p, &w, scratch, m->rank, m->size);
  NAME(part) t = NAME(part_of)(p, task);
  NAME(values_spectra)(p, &w, &t, m);
  int direct = t.lanes == VL && p->os_v == 1, rows = NAME(map_rows)(p, &t);
  REAL *output = (REAL *)p->output + t.example * p->os_b + t.channel * p->os_v;
  const REAL *queries = (const REAL *)p->queries + t.example * p->qs_b;
  for (int z = 0; z < p->depth; z++)
    for (int first = 0; first < p->pairs; first += p->G) {
      int count = p->pairs - first < p->G ? p->pairs - first : p->G;
      NAME(lambda_columns)(p, &w, &t, z, first, count, m);
      barrier(m);
      for (int y = share(rows, m, 0); y < share(rows, m, 1); y++) {
        NAME(row) r = NAME(row_of)(p, &t, z, y);
        NAME(add_content)(p, &w, &t, first, count, y);
        REAL *out = direct ? output + r.global * p->os_n : (REAL *)(w.y + r.local * p->h);
        ptrdiff_t y_x = r.step * (direct ? p->os_n : p->h * VL), y_h = direct ? p->os_h : VL;
        for (int g = 0; g < count; g += 2) {
          const REAL *q = queries + r.global * p->qs_n + 2 * (first + g) * p->qs_k;
          int fresh = first + g == 0, both = g + 1 < count, odd = 2 * (first + g + both) + 1 >= p->k;
          for (int e = 0; e <= both; e++) NAME(lambda_row)(p, &w, y, g + e, w.lam + 2 * r.count * e, r.count);
          (both ? NAME(apply_2) : NAME(apply_1))(w.lam, 2 * r.count, q, r.step * p->qs_n, p->qs_h, p->qs_k, out, y_x, y_h,
                                                 r.count, p->h, fresh, odd);
        }
        if (!direct && first + count == p->pairs)
          NAME(copy_row)(r, p->h, t.lanes, w.y, output, p->os_n, p->os_h, p->os_v, 1);
      }
      barrier(m);
    }
}

/* ---- backward ---- */

/* lane i of the result is the sum of the lanes of p[i] */
#if VL == 16
#define COMBINE(a, b, T)                                                                                            \
  (__builtin_shufflevector(a, b, L(0, T), L(1, T), L(2, T), L(3, T), L(4, T), L(5, T), L(6, T), L(7, T), L(8, T),   \
                           L(9, T), L(10, T), L(11, T), L(12, T), L(13, T), L(14, T), L(15, T)) +                   \
   __builtin_shufflevector(a, b, M(0, T), M(1, T), M(2, T), M(3, T), M(4, T), M(5, T), M(6, T), M(7, T), M(8, T),   \
                           M(9, T), M(10, T), M(11, T), M(12, T), M(13, T), M(14, T), M(15, T)))
#elif VL == 8
#define COMBINE(a, b, T)                                                                                          \
  (__builtin_shufflevector(a, b, L(0, T), L(1, T), L(2, T), L(3, T), L(4, T), L(5, T), L(6, T), L(7, T)) +        \
   __builtin_shufflevector(a, b, M(0, T), M(1, T), M(2, T), M(3, T), M(4, T), M(5, T), M(6, T), M(7, T)))
#elif VL == 4
#define COMBINE(a, b, T)                                                  \
  (__builtin_shufflevector(a, b, L(0, T), L(1, T), L(2, T), L(3, T)) +    \
   __builtin_shufflevector(a, b, M(0, T), M(1, T), M(2, T), M(3, T)))
#else
#error "VL must be 4, 8 or 16"
#endif
#define L(i, T) ((i) & (T) ? VL + (i) : (i))
#define M(i, T) ((i) & (T) ? VL + ((i) ^ (T)) : ((i) ^ (T)))
INLINE V NAME(sum_lanes)(V *p) {
  UNROLL for (int m = 0; m < VL / 2; m++) p[m] = COMBINE(p[2 * m], p[2 * m + 1], 1);
  UNROLL for (int m = 0; m < VL / 4; m++) p[m] = COMBINE(p[2 * m], p[2 * m + 1], 2);
#if VL >= 8
  UNROLL for (int m = 0; m < VL / 8; m++) p[m] = COMBINE(p[2 * m], p[2 * m + 1], 4);
#endif
#if VL >= 16
  p[0] = COMBINE(p[0], p[1], 8);
#endif
  return p[0];
}

/* dq[x][h][4] (+)= sum over lanes of g[x][h] lambda[4 depths] */
#define ITEMS (VL / 4)
static __attribute__((noinline)) void NAME(query_gradients)(const V *even, const V *odd, const V *g, ptrdiff_t g_x, REAL *dq,
                                                            ptrdiff_t dq_x, ptrdiff_t dq_h, ptrdiff_t dq_k, const int *position,
                                                            int items, int h) {
  for (int item = 0; item < items; item += ITEMS) {
    V prod[VL];
    UNROLL for (int l = 0; l < ITEMS; l++) {
      int i = item + l < items ? item + l : item;
      ptrdiff_t x = position[i], j = i - x * h;
      V gv = g[x * g_x + j];
      prod[4 * l] = gv * even[2 * x + 1];
      prod[4 * l + 1] = gv * even[2 * x];
      prod[4 * l + 2] = gv * odd[2 * x + 1];
      prod[4 * l + 3] = gv * odd[2 * x];
    }
    V s = NAME(sum_lanes)(prod);
    for (int l = 0; l < ITEMS && item + l < items; l++) {
      ptrdiff_t x = position[item + l], j = item + l - x * h;
      REAL *o = dq + x * dq_x + j * dq_h, *sums = (REAL *)&s + 4 * l;
      if (dq_k == 1)
        memcpy(o, sums, 4 * sizeof(REAL));
      else
        for (int k = 0; k < 4; k++) o[k * dq_k] = sums[k];
    }
  }
}

/* gradients of lambdas of one row: lam[x] = (dlambda_k, dlambda_{k+1}) */
#define OUTER(COUNT)                                                                                                  \
  static __attribute__((noinline)) void NAME(outer_##COUNT)(V *lam, ptrdiff_t lam_stride, const REAL *q, ptrdiff_t q_x, \
                                                            ptrdiff_t q_h, ptrdiff_t q_k, const V *y, ptrdiff_t y_x,  \
                                                            int W, int h, int odd) {                                  \
    ptrdiff_t last = odd ? 0 : q_k;                                                                                   \
    for (int x = 0; x < W; x++) {                                                                                     \
      V a[COUNT], b[COUNT];                                                                                           \
      UNROLL for (int g = 0; g < COUNT; g++) a[g] = b[g] = (V){0};                                                    \
      for (int j = 0; j < h; j++) {                                                                                   \
        V s = y[x * y_x + j];                                                                                         \
        const REAL *c = q + x * q_x + j * q_h;                                                                        \
        UNROLL for (int g = 0; g < COUNT; g++) {                                                                      \
          a[g] += s * c[2 * g * q_k];                                                                                 \
          b[g] += s * c[2 * g * q_k + (g == COUNT - 1 ? last : q_k)];                                                 \
        }                                                                                                             \
      }                                                                                                               \
      if (odd) b[COUNT - 1] = (V){0};                                                                                 \
      UNROLL for (int g = 0; g < COUNT; g++) {                                                                        \
        lam[g * lam_stride + 2 * x] = a[g];                                                                           \
        lam[g * lam_stride + 2 * x + 1] = b[g];                                                                       \
      }                                                                                                               \
    }                                                                                                                 \
  }
OUTER(1)
OUTER(2)

/* One column of D: S[f] += sum over lanes of V^[f]* D[f];  G[f] += R'^[f]* D[f], or mirrored, with V^ and G at -f,
 * G[-f] += R'^[f] D[f]*. */
#define FREQUENCIES (VL / 2)
#define CONSUME(NAME_, INDEX, SIGN)                                                                                \
  static __attribute__((noinline)) void NAME(NAME_)(const V *D, const V *spectrum, const REAL *R, V *G, REAL *S,   \
                                                    int N, int mirror) {                                           \
    for (int first = 0; first < N; first += FREQUENCIES) {                                                         \
      V prod[VL];                                                                                                  \
      UNROLL for (int l = 0; l < FREQUENCIES; l++) {                                                               \
        int f = first + l;                                                                                         \
        if (f >= N) {                                                                                              \
          prod[2 * l] = prod[2 * l + 1] = (V){0};                                                                  \
          continue;                                                                                                \
        }                                                                                                          \
        int m = INDEX;                                                                                             \
        V dr = D[2 * f], di = D[2 * f + 1], vr = spectrum[2 * m], vi = spectrum[2 * m + 1];                        \
        REAL a = R[2 * f], c = R[2 * f + 1];                                                                       \
        G[2 * m] += dr * a + di * c;                                                                               \
        G[2 * m + 1] += SIGN(di * a - dr * c);                                                                     \
        prod[2 * l] = vr * dr + SIGN(vi * di);                                                                     \
        prod[2 * l + 1] = vr * di - SIGN(vi * dr);                                                                 \
      }                                                                                                            \
      V s = NAME(sum_lanes)(prod);                                                                                 \
      REAL *o = S + 2 * first;                                                                                     \
      if (first + FREQUENCIES <= N)                                                                                \
        *(VU *)o += s;                                                                                             \
      else                                                                                                         \
        for (int l = 0; l < 2 * (N - first); l++) o[l] += s[l];                                                    \
    }                                                                                                              \
  }
CONSUME(consume, f, +)
CONSUME(consume_mirrored, (mirror - f < N ? mirror - f : 0), -)

/* gradients of values of one slice from G (half spectrum): inverse DFTs of columns */
static __attribute__((noinline)) void NAME(values_gradient_columns)(const problem *p, NAME(work) *w, const NAME(part) *t, V *grad,
                                                                    team *team) {
  const axis *a1 = &p->axes[0];
  int N1 = a1->n, F2 = p->axes[1].n / 2 + 1, limit = NAME(row_limit)(p, t);
  for (int f = share(F2, team, 0); f < share(F2, team, 1); f++) { /* inverse: exchange parts twice */
    V *column = grad + 2 * (ptrdiff_t)f * N1;
    for (int m = 0; m < N1; m++) {
      V s = column[2 * m];
      column[2 * m] = column[2 * m + 1];
      column[2 * m + 1] = s;
    }
    NAME(dft)(a1, w->tmp, column, 2, N1, column, 2, limit);
  }
}
/* and of rows begin .. end - 1 (begin even), stored or added */
static __attribute__((noinline)) void NAME(values_gradient_rows)(const problem *p, NAME(work) *w, const NAME(part) *t, V *grad,
                                                                 REAL *out, int begin, int end, int add) {
  const axis *a2 = &p->axes[1];
  int N1 = p->axes[0].n, N2 = a2->n, F2 = N2 / 2 + 1;
  const REAL *cross = p->cross;
  for (int y = begin; y < end; y += 2) {
    int pair = y + 1 < end;
    if (!NAME(is_row)(p, t, y) && !(pair && NAME(is_row)(p, t, y + 1))) continue;
    for (int f = 0; f < F2; f++) {
      V *c = grad + 2 * ((ptrdiff_t)f * N1 + y);
      if (cross) {
        NAME(turn)(c, cross + 2 * ((ptrdiff_t)y * N2 + f));
        if (pair) NAME(turn)(c + 2, cross + 2 * ((ptrdiff_t)(y + 1) * N2 + f));
      }
      V ai = c[0], ar = c[1], bi = {0}, br = {0};
      if (pair) {
        bi = c[2];
        br = c[3];
      }
      if (f == 0 || 2 * f == N2) { /* Z = Re a + i Re b, exchanged */
        w->line[2 * f] = br;
        w->line[2 * f + 1] = ar;
      } else { /* Z[f] = (a + i b) / 2, Z[-f] = (conj a + i conj b) / 2 */
        w->line[2 * f + 1] = (ar - bi) * (REAL)0.5;
        w->line[2 * f] = (ai + br) * (REAL)0.5;
        w->line[2 * (N2 - f) + 1] = (ar + bi) * (REAL)0.5;
        w->line[2 * (N2 - f)] = (br - ai) * (REAL)0.5;
      }
    }
    int limit_out = p->sequence || t->behind[1] ? N2 : (int)t->ahead[1];
    NAME(dft)(a2, w->tmp, w->line, 2, N2, w->line, 2, limit_out);
    for (int x = 0; x < limit_out; x++)
      for (int e = 0; e <= pair; e++) {
        ptrdiff_t at = NAME(source)(p, t, y + e, x);
        if (at < 0) continue;
        REAL *o = out + at * p->dv_n;
        V s = w->line[2 * x + 1 - e];
        NAME(store_lanes)(o, p->dv_v, add ? s + NAME(load_lanes)(o, p->dv_v, t->lanes) : s, t->lanes);
      }
  }
}

/* dlambda, its transform D, and what follows from D, for pairs first .. first + count - 1 of slice z */
static void NAME(adjoint_columns)(const problem *p, NAME(work) *w, int z, int first, int count, int rows, team *m) {
  const axis *a = &p->axes[0];
  int N1 = a->n, N2 = p->axes[1].n, F2 = N2 / 2 + 1, terms = p->depth_scope * p->u, slot;
  ptrdiff_t ms = NAME(map_stride)(p);
  /* columns f and N2 - f contribute to the same G */
  for (int column = share(F2, m, 0); column < share(F2, m, 1); column++)
    for (int i = 0; i < (column == 0 || 2 * column == N2 ? count : 2 * count); i++) {
      int mirrored = i >= count, g = i - mirrored * count, c = mirrored ? N2 - column : column;
      V *in = w->map + 2 * ((ptrdiff_t)g * N2 + c);
      if (p->cross)
        NAME(dft_twiddled)(a, w->tmp, in, ms, (const REAL *)p->cross + 2 * c, N2, w->line, 2, N1);
      else
        NAME(dft)(a, w->tmp, in, ms, rows, w->line, 2, N1);
      if (c == 0) {
        w->grad_content[2 * (first + g)] += w->line[0];
        w->grad_content[2 * (first + g) + 1] += w->line[1];
      }
      for (int i = 0; i < terms; i++) {
        if (!NAME(term)(p, z, i, &slot)) continue;
        ptrdiff_t at = slot * NAME(spectrum_size)(p) + 2 * (ptrdiff_t)column * N1, table = NAME(table_column)(p, i, first + g, c);
        (mirrored ? NAME(consume_mirrored) : NAME(consume))(w->line, w->spectrum + at, (const REAL *)p->spectrum + table, w->grad + at,
                                                            w->grad_table + table, N1, NAME(mirror)(p));
      }
    }
}

__attribute__((visibility("hidden"))) void NAME(backward_task)(const problem *p, char *scratch, int task, order *turns, team *m) {
  NAME(work) w;
  NAME(carve)(p, &w, scratch, m->rank, m->size);
  NAME(part) t = NAME(part_of)(p, task);
  int N2 = p->axes[1].n, h = p->h, rows = NAME(map_rows)(p, &t), slots = p->depth * p->u;
  int adjoint = p->grad_values || p->grad_spectra || p->grad_content, direct = NAME(dq_direct)(p);
  int cols = p->sequence ? N2 : p->tile[1];
  ptrdiff_t K = NAME(padded_depth)(p);
  for (int item = 0; item < cols * h; item++) w.position[item] = item / h;
  size_t zeros = slots * NAME(spectrum_size)(p), own = NAME(table_size)(p), from = share(zeros, m, 0);
  memset(w.grad + from, 0, (share(zeros, m, 1) - from) * sizeof(V));
  from = share(own, m, 0);
  memset(w.grad_table + from, 0, (share(own, m, 1) - from) * sizeof(REAL));
  if (m->rank == 0) memset(w.grad_content, 0, 2 * p->pairs * sizeof(V));
  NAME(values_spectra)(p, &w, &t, m);
  REAL *g = (REAL *)p->grad_output + t.example * p->gs_b + t.channel * p->gs_v;
  const REAL *queries = (const REAL *)p->queries + t.example * p->qs_b;
  REAL *grad_queries = (REAL *)p->grad_queries + t.example * p->dq_b;
  for (int z = 0; z < p->depth; z++) {
    for (int y = share(rows, m, 0); y < share(rows, m, 1); y++) {
      NAME(copy_row)(NAME(row_of)(p, &t, z, y), h, t.lanes, w.y, g, p->gs_n, p->gs_h, p->gs_v, 0);
    }
    for (int first = 0; first < p->pairs; first += p->G) {
      int count = p->pairs - first < p->G ? p->pairs - first : p->G;
      if (p->grad_queries) {
        NAME(lambda_columns)(p, &w, &t, z, first, count, m);
        barrier(m);
      }
      for (int y = share(rows, m, 0); y < share(rows, m, 1); y++) {
        NAME(row) r = NAME(row_of)(p, &t, z, y);
        if (p->grad_queries) NAME(add_content)(p, &w, &t, first, count, y);
        const V *gy = w.y + r.local * h;
        V *map = w.map + y * NAME(map_stride)(p), *second = w.lam + 2 * r.count;
        for (int s = 0; s < count; s += 2) {
          int both = s + 1 < count, k = 2 * (first + s), odd = k + 2 * both + 1 >= p->k;
          const REAL *q = queries + r.global * p->qs_n + k * p->qs_k;
          if (p->grad_queries) {
            for (int e = 0; e <= both; e++) NAME(lambda_row)(p, &w, y, s + e, w.lam + 2 * r.count * e, r.count);
            if (!both) memset(second, 0, 2 * r.count * sizeof(V));
            REAL *dq = direct ? grad_queries + r.global * p->dq_n + k * p->dq_k : w.dq + r.local * h * K + k;
            NAME(query_gradients)(w.lam, second, gy, r.step * h, dq, r.step * (direct ? p->dq_n : h * K), direct ? p->dq_h : K,
                                  direct ? p->dq_k : 1, w.position, r.count * h, h);
          }
          if (!adjoint) continue;
          (both ? NAME(outer_2) : NAME(outer_1))(w.lam, 2 * r.count, q, r.step * p->qs_n, p->qs_h, p->qs_k, gy, r.step * h, r.count, h,
                                                       odd);
          for (int e = 0; e <= both; e++)
            NAME(dft)(&p->axes[1], w.tmp, w.lam + 2 * r.count * e, 2, r.count, map + 2 * (ptrdiff_t)(s + e) * N2, 2, N2);
        }
      }
      barrier(m);
      if (adjoint) NAME(adjoint_columns)(p, &w, z, first, count, rows, m);
      barrier(m);
    }
  }

  /* sums over tasks, in order */
  if (p->grad_queries && !direct) {
    begin_turn(turns, SEGMENTS, task, m);
    for (int z = 0; z < p->depth; z++)
      for (int y = share(rows, m, 0); y < share(rows, m, 1); y++) {
        NAME(row) r = NAME(row_of)(p, &t, z, y);
        for (int x = 0; x < r.count; x++)
          for (int j = 0; j < h; j++) {
            REAL *o = grad_queries + (r.global + r.step * x) * p->dq_n + j * p->dq_h;
            const REAL *s = w.dq + ((r.local + r.step * x) * h + j) * K;
            for (int k = 0; k < p->k; k++) o[k * p->dq_k] = t.channel == 0 ? s[k] : o[k * p->dq_k] + s[k];
          }
      }
    end_turn(turns, SEGMENTS, task, m);
  }
  if (p->grad_content) {
    begin_turn(turns, SEGMENTS + 1, task, m);
    for (int k = 0; k < p->k && m->rank == 0; k++) {
      REAL *o = (REAL *)p->grad_content + ((ptrdiff_t)t.example * p->k + k) * p->v + t.channel;
      NAME(store_lanes)(o, 1, t.tile ? w.grad_content[k] + NAME(load_lanes)(o, 1, t.lanes) : w.grad_content[k], t.lanes);
    }
    end_turn(turns, SEGMENTS + 1, task, m);
  }
  if (p->grad_spectra)
    for (int s = 0, segments = m->size > 1 ? 1 : SEGMENTS; s < segments; s++) { /* a pipeline of teams of one */
      begin_turn(turns, s, task, m);
      size_t at = own * (s * m->size + m->rank) / (segments * m->size), end = own * (s * m->size + m->rank + 1) / (segments * m->size);
      for (REAL *total = p->grad_spectra; at < end; at++) total[at] = task == 0 ? w.grad_table[at] : total[at] + w.grad_table[at];
      end_turn(turns, s, task, m);
    }
  if (p->grad_values) {
    int add = num_tiles(p) > 1, pairs = (NAME(row_limit)(p, &t) + 1) / 2;
    int end = share(pairs, m, 1) * 2 < NAME(row_limit)(p, &t) ? share(pairs, m, 1) * 2 : NAME(row_limit)(p, &t);
    size_t size = NAME(spectrum_size)(p);
    REAL *out = (REAL *)p->grad_values + t.example * p->dv_b + t.channel * p->dv_v;
    for (int i = 0; i < slots; i++) NAME(values_gradient_columns)(p, &w, &t, w.grad + i * size, m);
    barrier(m);
    if (add) begin_turn(turns, SEGMENTS + 2, task, m);
    for (int z = 0; z < p->depth; z++)
      for (int u = 0; u < p->u; u++)
        NAME(values_gradient_rows)(p, &w, &t, w.grad + ((size_t)z * p->u + u) * size,
                                   out + (ptrdiff_t)z * p->H * p->W * p->dv_n + u * p->dv_u, share(pairs, m, 0) * 2, end, add);
    if (add) end_turn(turns, SEGMENTS + 2, task, m);
  }
}
