/* The position interaction of a lambda layer by fused Fourier transforms; compiled once per instruction set and type.
 *
 * Transforms. f n in an exponent means 2 pi (f1 n1 / N1 + f2 n2 / N2); * is the conjugate. Inputs are zero-padded.
 *   V^[f]   = sum_n V[n] e^{-ifn}                       transform_values: real, one channel per lane of a vector
 *   R'^[f]  = 1 / (N1 N2) sum_d R'[d] e^{+ifd}          R' = R_k + i R_{k+1}: two query depths in one transform
 *   lambda' = sum_f sum_(dz,u) R'^[f] V^[f] e^{+ifn}    lambda_columns, lambda_row; dz are offsets in depth
 *           = sum_d R'[d] V[n + d] = lambda_k + i lambda_{k+1}
 * The plus in R'^ makes it a correlation. R'^ has the only division. It is computed in float64, for all kernels, because
 * errors of a transform are relative to its largest sum: `transform_tables` of the float64 kernel.
 * Sequences are maps, n = n1 + N1 n2 and f = N2 f1 + f2, with factors `cross` between the transforms of the two axes.
 *
 * Inverse. With swap(a + ib) = b + ia, sum_f X[f] e^{+ifn} = swap(DFT(swap X)): codelets need only the forward direction.
 * LOAD_PRODUCT and `multiply` store swap(R'^ V^), both axes are transformed forward, and the last swap is left out: `map`,
 * between the transforms, and the lambdas are swapped, (lambda_{k+1}, lambda_k), where they are read. A content lambda is
 * a constant, added to `map` at f2 = 0. Gradients of lambdas and D are not swapped; G is at the start of its inverse.
 *
 * Half spectrum. V is real, so V^[-f] = V^[f]*. Only columns f2 <= N2 / 2 are stored; column f2 above is column
 * N2 - f2 at index `mirror` - f1, conjugated, where mirror = N1, and N1 stands for 0. In a sequence
 * -f = N2 (N1 - 1 - f1) + N2 - f2, so mirror = N1 - 1.
 * Two rows a, b of values are one complex row with Z = DFT(a + ib): a^[f] = (Z[f] + Z[-f]*) / 2 and
 * b^[f] = (Z[f] - Z[-f]*) / 2i.
 *
 * Forward, per task (example, VL value channels, tile of the grid): V^ of each slice of depth and each u, once.
 * For each pair of depths: for each f2, the sum of products over (depth offset, u), transformed back over f1 to `map`; each
 * row, transformed back over f2 to lambdas in the first-level cache; out[h,n] += q_k lambda_k + q_{k+1} lambda_{k+1}.
 *
 * Backward. dlambda' = sum_h (q_k + i q_{k+1}) grad_out and D[f] = sum_n dlambda'[n] e^{-ifn}. Then
 *   grad q_k = sum over lanes of grad_out lambda_k    grad content = D[0]
 *   grad R'^[f] = sum over lanes of V^[f]* D[f]       transform_tables: grad R'[d] = 1 / (N1 N2) sum_f grad R'^[f] e^{-ifd}
 *   G[f] = R'^[f]* D[f]                               gradient of V^[f]
 *   grad V[n] = Re sum_f G[f] e^{+ifn}
 * Re(X) = Re(X*), so G[f] of the columns above N2 / 2 is added as G[f]* at -f, to those that are stored. Two rows a, b
 * of the sum over f1 are again one complex row: Re sum_{f <= N2/2} a[f] e^{+ifn} is the sum over all f of a[f] / 2 and,
 * at -f, a[f]* / 2, so Z[f] = (a + ib) / 2 and Z[-f] = (a* + ib*) / 2; f = 0 and f = N2 / 2 are their own mirror
 * images, with Z = Re a + i Re b. Its real part is row a, its imaginary part row b.
 *
 * Sums over lanes. sum_lanes adds the lanes of VL vectors at once, by a butterfly: with bit = 1, 2, 4 .. VL / 2,
 * COMBINE(a, b, bit) has in lane i the sum x[i] + x[i xor bit] of x = a, or of x = b if i has the bit. Each step halves
 * the vectors, and lane i of the last one is the sum of x[i].
 *
 * Names: p problem; t the part of it that a task computes, team its threads; w working memory, with w->spectrum for V^,
 * w->grad for G; p->spectrum is R'^; x and y columns and rows of a map, z slices of depth, g pairs of a group, j heads, l
 * lanes. libraries.py defines REAL, VL (lanes) and KERNEL (suffix of names); vec has VL lanes. A transform of length A B
 * is pass 1, B DFTs of length A with twiddles, and pass 2, A DFTs of length B; a third pass splits pass 2.
 */
#include "native.h"

typedef REAL vec __attribute__((vector_size(VL * sizeof(REAL))));
typedef REAL vec_unaligned __attribute__((vector_size(VL * sizeof(REAL)), aligned(sizeof(REAL))));

#include "codelets.h"

/* Stores past the cache, for maps larger than it. Barriers fence. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#define STREAM(to, x) __builtin_nontemporal_store(x, to)
#endif
#endif
#ifndef STREAM
#define STREAM(to, x) (*(to) = (x))
#endif

#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#define NAME(x) CAT(CAT(x, _), KERNEL)

/* Pass 1: DFTs of length A over inputs f = B fa + fb, which LOAD reads to r[fa], i[fa]; then twiddles; tmp[fb][na].
 * `factors` and `number` are those of LOAD. */
#define PASS1(VARIANT, A, LOAD)                                                                           \
  static void NAME(VARIANT##_##A)(const vec *in, ptrdiff_t stride, int B, vec *tmp, const REAL *twiddles, \
                                  const REAL *factors, ptrdiff_t number) {                                \
    for (int fb = 0; fb < B; fb++) {                                                                      \
      vec r[A], i[A];                                                                                     \
      UNROLL for (int fa = 0; fa < A; fa++) {                                                             \
        int f = B * fa + fb;                                                                              \
        LOAD(A)                                                                                           \
      }                                                                                                   \
      dft_##A(r, i);                                                                                      \
      vec *to = tmp + 2 * A * fb;                                                                         \
      const REAL *twiddle = twiddles + 2 * A * fb;                                                        \
      to[0] = r[0];                                                                                       \
      to[1] = i[0];                                                                                       \
      UNROLL for (int na = 1; na < A; na++) {                                                             \
        REAL c = twiddle[2 * na], s = twiddle[2 * na + 1];                                                \
        to[2 * na] = r[na] * c - i[na] * s;                                                               \
        to[2 * na + 1] = r[na] * s + i[na] * c;                                                           \
      }                                                                                                   \
    }                                                                                                     \
  }
#define LOAD_PLAIN(A)                           \
  const vec *from = in + (ptrdiff_t)f * stride; \
  r[fa] = from[0];                              \
  i[fa] = from[1];
/* inputs from `number` on are zero */
static const vec NAME(zeros)[2] __attribute__((aligned(64)));
#define LOAD_LIMITED(A)                                         \
  const vec *from = f < number ? in + f * stride : NAME(zeros); \
  r[fa] = from[0];                                              \
  i[fa] = from[1];
/* inputs times factors[f number], a `cross` twiddle */
#define LOAD_TURNED(A)                                               \
  const vec *from = in + f * stride;                                 \
  REAL c = factors[2 * f * number], s = factors[2 * f * number + 1]; \
  r[fa] = from[0] * c - from[1] * s;                                 \
  i[fa] = from[0] * s + from[1] * c;
/* swap(V^[f] R'^[f]): in is a column of V^, factors one of R'^ */
#define LOAD_PRODUCT(A)                            \
  vec vr = in[2 * f], vi = in[2 * f + 1];          \
  REAL a = factors[2 * f], b = factors[2 * f + 1]; \
  r[fa] = vi * a + vr * b;                         \
  i[fa] = vr * a - vi * b;
/* the same with V^[-f], which is stored conjugated at `number` - f */
#define LOAD_MIRRORED(A)                           \
  int at = number - f < A * B ? number - f : 0;    \
  vec vr = in[2 * at], vi = in[2 * at + 1];        \
  REAL a = factors[2 * f], b = factors[2 * f + 1]; \
  r[fa] = vr * b - vi * a;                         \
  i[fa] = vr * a + vi * b;
#define PASSES1(A)                \
  PASS1(plain, A, LOAD_PLAIN)     \
  PASS1(limited, A, LOAD_LIMITED) \
  PASS1(turned, A, LOAD_TURNED)   \
  PASS1(product, A, LOAD_PRODUCT) \
  PASS1(mirrored, A, LOAD_MIRRORED)
/* pass 2: DFTs of length B over fb; outputs na + A nb below `limit` */
#define PASS2(B)                                                                                                  \
  static void NAME(pass2_##B)(const vec *tmp, int A, vec *out, ptrdiff_t stride, int limit, ptrdiff_t streamed) { \
    for (int na = 0; na < A; na++) {                                                                              \
      vec r[B], i[B];                                                                                             \
      UNROLL for (int fb = 0; fb < B; fb++) {                                                                     \
        const vec *from = tmp + 2 * ((ptrdiff_t)A * fb + na);                                                     \
        r[fb] = from[0];                                                                                          \
        i[fb] = from[1];                                                                                          \
      }                                                                                                           \
      dft_##B(r, i);                                                                                              \
      if (stride >= streamed) {                                                                                   \
        UNROLL for (int nb = 0; nb < B; nb++)                                                                     \
          if (na + A * nb < limit) {                                                                              \
            vec *to = out + (na + A * nb) * stride;                                                               \
            STREAM(to, r[nb]);                                                                                    \
            STREAM(to + 1, i[nb]);                                                                                \
          }                                                                                                       \
        __asm__ volatile(""); /* else clang merges them with the stores below */                                  \
        continue;                                                                                                 \
      }                                                                                                           \
      UNROLL for (int nb = 0; nb < B; nb++)                                                                       \
        if (na + A * nb < limit) {                                                                                \
          vec *to = out + (na + A * nb) * stride;                                                                 \
          to[0] = r[nb];                                                                                          \
          to[1] = i[nb];                                                                                          \
        }                                                                                                         \
    }                                                                                                             \
  }
FOR_EACH_RADIX(PASSES1)
FOR_EACH_RADIX(PASS2)

typedef void (*NAME(pass1_t))(const vec *, ptrdiff_t, int, vec *, const REAL *, const REAL *, ptrdiff_t);
typedef void (*NAME(pass2_t))(const vec *, int, vec *, ptrdiff_t, int, ptrdiff_t);
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
static void NAME(finish)(const axis *a, vec *tmp, vec *tmp2, vec *out, ptrdiff_t stride, int limit) {
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
static void NAME(dft)(const axis *a, vec *tmp, const vec *in, ptrdiff_t in_stride, int limit_in, vec *out, ptrdiff_t out_stride,
                      int limit_out) {
  int rest = a->n / a->f[0];
  if (limit_in < a->n)
    NAME(radix)[a->f[0]].limited(in, in_stride, rest, tmp, a->twiddles[0], 0, limit_in);
  else
    NAME(radix)[a->f[0]].plain(in, in_stride, rest, tmp, a->twiddles[0], 0, 0);
  NAME(finish)(a, tmp, tmp + 2 * a->n, out, out_stride, limit_out);
}

/* inputs times cross[f cross_stride] */
static void NAME(dft_twiddled)(const axis *a, vec *tmp, const vec *in, ptrdiff_t in_stride, const REAL *cross, ptrdiff_t cross_stride,
                               vec *out, ptrdiff_t out_stride, int limit_out) {
  NAME(radix)[a->f[0]].turned(in, in_stride, a->n / a->f[0], tmp, a->twiddles[0], cross, cross_stride);
  NAME(finish)(a, tmp, tmp + 2 * a->n, out, out_stride, limit_out);
}

/* ---- tasks and working memory ---- */

/* Outputs y0 .. y0 + rows - 1, x0 .. x0 + cols - 1. Inputs: index i of an axis holds position start + i if i < ahead,
 * start + i - N if i >= N - behind, else zero. Sequences have rows = 1 and the axis of n = n1 + N1 n2. */
typedef struct {
  int example, channel, lanes, tile;
  ptrdiff_t start[2], count[2], ahead[2], behind[2];
} NAME(part);

typedef struct {
  vec *spectrum; /* V^: [slice][u][f2 <= N2/2][f1] complex */
  vec *map;      /* [row][pair][N2] complex */
  vec *tmp, *line, *lam;
  vec *out;       /* [local position][h], for incomplete blocks and for gradients of outputs */
  vec *grad;     /* backward: gradient of V^ */
  vec *grad_content;
  REAL *dq;    /* [local position][h][k4] */
  REAL *grad_table;
  int *position; /* of each item (x, head) of a row */
} NAME(work);

static inline int NAME(num_blocks)(const problem *p) { return (p->v + VL - 1) / VL; }
static inline ptrdiff_t NAME(map_stride)(const problem *p) { return 2 * ((ptrdiff_t)p->group * p->axes[1].n + 1); }
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
#define TAKE(field, type, count)                                        \
  bytes = (size_t)(count) * sizeof(type);                               \
  if (w) {                                                              \
    w->field = (type *)(base + at);                                     \
    FORBID(base + at + bytes, (bytes + 127) / 128 * 128 + GAP - bytes); \
  }                                                                     \
  at += (bytes + 127) / 128 * 128 + GAP;
  TAKE(spectrum, vec, slots * NAME(spectrum_size)(p))
  TAKE(map, vec, (size_t)rows * NAME(map_stride)(p))
  TAKE(out, vec, copied ? n * p->h : 0)
  if (p->grad_output) {
    TAKE(grad, vec, slots * NAME(spectrum_size)(p))
    TAKE(grad_content, vec, 2 * p->pairs)
    TAKE(dq, REAL, NAME(dq_direct)(p) ? 0 : n * p->h * NAME(padded_depth)(p))
    TAKE(grad_table, REAL, NAME(table_size)(p))
  }
  for (int r = 0; r < size; r++) {
    if (r == rank + 1) w = 0;
    TAKE(tmp, vec, 4 * longest)
    TAKE(line, vec, 2 * longest)
    TAKE(lam, vec, 4 * (size_t)cols)
    TAKE(position, int, p->grad_output ? (size_t)cols * p->h : 0)
  }
#undef TAKE
  return at;
}
__attribute__((visibility("hidden"))) size_t NAME(scratch_bytes)(const problem *p, int size) { return NAME(carve)(p, 0, 0, 0, size); }

INLINE vec NAME(load_lanes)(const REAL *at, ptrdiff_t stride, int lanes) {
  if (lanes == VL && stride == 1) return *(const vec_unaligned *)at;
  vec x = {0};
  for (int l = 0; l < lanes; l++) x[l] = at[l * stride];
  return x;
}
INLINE void NAME(store_lanes)(REAL *at, ptrdiff_t stride, vec x, int lanes) {
  if (lanes == VL && stride == 1)
    *(vec_unaligned *)at = x;
  else
    for (int l = 0; l < lanes; l++) at[l * stride] = x[l];
}

/* Positions of row y of the map: global + step x in the example, local + step x in the part, for x < count */
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

INLINE void NAME(turn)(vec *x, const REAL *c) {
  vec real = x[0] * c[0] - x[1] * c[1];
  x[1] = x[0] * c[1] + x[1] * c[0];
  x[0] = real;
}

/* V^ of one slice; two rows share one complex transform */
static __attribute__((noinline)) void NAME(transform_values)(const problem *p, NAME(work) *w, const NAME(part) *t, const REAL *values,
                                                             vec *spectrum, team *team) {
  const axis *a1 = &p->axes[0], *a2 = &p->axes[1];
  int N1 = a1->n, N2 = a2->n, F2 = N2 / 2 + 1, limit = NAME(row_limit)(p, t);
  const REAL *cross = p->cross;
  for (int y = share((limit + 1) / 2, team, 0) * 2; y < share((limit + 1) / 2, team, 1) * 2; y += 2) {
    int pair = y + 1 < limit;
    if (!NAME(is_row)(p, t, y) && !(pair && NAME(is_row)(p, t, y + 1))) { /* between the two ends of a tile */
      for (int f = 0; f < F2; f++) memset(spectrum + 2 * ((ptrdiff_t)f * N1 + y), 0, (pair ? 4 : 2) * sizeof(vec));
      continue;
    }
    int limit_in = p->sequence || t->behind[1] ? N2 : (int)t->ahead[1];
    for (int x = 0; x < limit_in; x++) {
      ptrdiff_t a = NAME(source)(p, t, y, x), b = pair ? NAME(source)(p, t, y + 1, x) : -1;
      w->line[2 * x] = a >= 0 ? NAME(load_lanes)(values + a * p->vs_n, p->vs_v, t->lanes) : (vec){0};
      w->line[2 * x + 1] = b >= 0 ? NAME(load_lanes)(values + b * p->vs_n, p->vs_v, t->lanes) : (vec){0};
    }
    NAME(dft)(a2, w->tmp, w->line, 2, limit_in, w->line, 2, N2);
    for (int f = 0; f < F2; f++) {
      int n = f == 0 ? 0 : N2 - f;
      vec zr = w->line[2 * f], zi = w->line[2 * f + 1], cr = w->line[2 * n], ci = -w->line[2 * n + 1];
      vec *o = spectrum + 2 * ((ptrdiff_t)f * N1 + y);
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
  barrier(team);
  for (int f = share(F2, team, 0); f < share(F2, team, 1); f++) {
    vec *column = spectrum + 2 * (ptrdiff_t)f * N1;
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

/* line (+)= swap(V^ R'^), `mirrored` for columns that are not stored */
static __attribute__((noinline)) void NAME(multiply)(const vec *spectrum, const REAL *R, vec *line, int N, int mirrored, int mirror,
                                                     int fresh) {
  for (int f = 0; f < N; f++) {
    int at = !mirrored ? f : mirror - f < N ? mirror - f : 0;
    vec vr = spectrum[2 * at], vi = mirrored ? -spectrum[2 * at + 1] : spectrum[2 * at + 1];
    vec re = vi * R[2 * f] + vr * R[2 * f + 1], im = vr * R[2 * f] - vi * R[2 * f + 1];
    line[2 * f] = fresh ? re : line[2 * f] + re;
    line[2 * f + 1] = fresh ? im : line[2 * f + 1] + im;
  }
}

INLINE int NAME(mirror)(const problem *p) { return p->axes[0].n - p->sequence; }

/* the map of slice z for pairs first .. first + count - 1 */
static __attribute__((noinline)) void NAME(lambda_columns)(const problem *p, NAME(work) *w, const NAME(part) *t, int z, int first,
                                                           int count, team *team) {
  const axis *a = &p->axes[0];
  int N1 = a->n, N2 = p->axes[1].n, F2 = N2 / 2 + 1, terms = p->depth_scope * p->u, rows = NAME(map_rows)(p, t);
  ptrdiff_t ms = NAME(map_stride)(p);
  const REAL *spectrum = p->spectrum;
  for (int f = share(N2, team, 0); f < share(N2, team, 1); f++) {
    int mirrored = f >= F2, column = mirrored ? N2 - f : f, slot;
    for (int g = 0; g < count; g++) {
      vec *out = w->map + 2 * ((ptrdiff_t)g * N2 + f);
      if (terms == 1) {
        const vec *v = w->spectrum + z * NAME(spectrum_size)(p) + 2 * (ptrdiff_t)column * N1;
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
    vec even = NAME(load_lanes)(content + (ptrdiff_t)k * p->cs_k, 1, t->lanes);
    vec odd = k + 1 < p->k ? NAME(load_lanes)(content + (ptrdiff_t)(k + 1) * p->cs_k, 1, t->lanes) : (vec){0};
    vec *row = w->map + (ptrdiff_t)y * NAME(map_stride)(p) + 2 * (ptrdiff_t)g * p->axes[1].n;
    row[0] += odd; /* swapped */
    row[1] += even;
  }
}

/* Copy row r of the outputs (from memory, or to it with `store`). Channels that are maps
 * are copied one by one: the row is in the cache, and memory is accessed along the positions. */
static void NAME(copy_row)(NAME(row) r, int h, int lanes, vec *buffer, REAL *out, ptrdiff_t out_n, ptrdiff_t out_h, ptrdiff_t out_v,
                           int store) {
  buffer += r.local * h;
  out += r.global * out_n;
  if (out_v == 1) {
    for (int x = 0; x < r.count; x++)
      for (int j = 0; j < h; j++) {
        vec *from = buffer + r.step * x * h + j;
        REAL *at = out + r.step * x * out_n + j * out_h;
        if (store)
          NAME(store_lanes)(at, 1, *from, lanes);
        else
          *from = NAME(load_lanes)(at, 1, lanes);
      }
    return;
  }
  for (int j = 0; j < h; j++)
    for (int l = 0; l < VL; l++) {
      REAL *lane = (REAL *)(buffer + j) + l, *at = out + j * out_h + l * out_v;
      ptrdiff_t buffer_x = r.step * h * VL, out_x = r.step * out_n;
      if (l >= lanes)
        for (int x = 0; x < r.count; x++) lane[x * buffer_x] = 0;
      else if (store)
        for (int x = 0; x < r.count; x++) at[x * out_x] = lane[x * buffer_x];
      else
        for (int x = 0; x < r.count; x++) lane[x * buffer_x] = at[x * out_x];
    }
}

/* inverse DFT of one row of the map: lam[x] = (lambda_{k+1}, lambda_k) for x < count */
INLINE void NAME(lambda_row)(const problem *p, NAME(work) *w, int y, int g, vec *lam, int count) {
  int N2 = p->axes[1].n;
  const vec *row = w->map + (ptrdiff_t)y * NAME(map_stride)(p) + 2 * (ptrdiff_t)g * N2;
  if (p->cross)
    NAME(dft_twiddled)(&p->axes[1], w->tmp, row, 2, (const REAL *)p->cross + 2 * (ptrdiff_t)y * N2, 1, lam, 2, count);
  else
    NAME(dft)(&p->axes[1], w->tmp, row, 2, N2, lam, 2, count);
}

/* out[x][h] (+)= sum over COUNT pairs of q lambda; lam: pairs of 2 `width` vectors. With `odd`, the last depth does not exist. */
#define APPLY(COUNT)                                                                                                       \
  static __attribute__((noinline)) void NAME(apply_##COUNT)(const vec *lam, ptrdiff_t lam_stride, const REAL *q,           \
                                                            ptrdiff_t q_x, ptrdiff_t q_h, ptrdiff_t q_k, REAL *out,        \
                                                            ptrdiff_t out_x, ptrdiff_t out_h, int width, int h, int fresh, \
                                                            int odd) {                                                     \
    ptrdiff_t last = odd ? 0 : q_k;                                                                                        \
    for (int x = 0; x < width; x++) {                                                                                      \
      vec a[COUNT], b[COUNT];                                                                                              \
      UNROLL for (int g = 0; g < COUNT; g++) {                                                                             \
        b[g] = lam[g * lam_stride + 2 * x];                                                                                \
        a[g] = lam[g * lam_stride + 2 * x + 1];                                                                            \
      }                                                                                                                    \
      if (odd) b[COUNT - 1] = (vec){0};                                                                                    \
      for (int j = 0; j < h; j++) {                                                                                        \
        vec_unaligned *to = (vec_unaligned *)(out + x * out_x + j * out_h);                                                \
        const REAL *c = q + x * q_x + j * q_h;                                                                             \
        vec sum = fresh ? (vec){0} : *to;                                                                                  \
        UNROLL for (int g = 0; g < COUNT; g++) {                                                                           \
          sum += a[g] * c[2 * g * q_k];                                                                                    \
          sum += b[g] * c[2 * g * q_k + (g == COUNT - 1 ? last : q_k)];                                                    \
        }                                                                                                                  \
        *to = sum;                                                                                                         \
      }                                                                                                                    \
    }                                                                                                                      \
  }
APPLY(1)
APPLY(2)

static void NAME(values_spectra)(const problem *p, NAME(work) *w, const NAME(part) *t, team *team) {
  ptrdiff_t slice = (ptrdiff_t)p->H * p->W;
  const REAL *values = (const REAL *)p->values + t->example * p->vs_b + t->channel * p->vs_v;
  for (int z = 0; z < p->depth; z++)
    for (int u = 0; u < p->u; u++)
      NAME(transform_values)(p, w, t, values + z * slice * p->vs_n + u * p->vs_u,
                             w->spectrum + ((size_t)z * p->u + u) * NAME(spectrum_size)(p), team);
  barrier(team);
}

__attribute__((visibility("hidden"))) void NAME(forward_task)(const problem *p, char *scratch, int task, order *turns, team *team) {
  NAME(work) w;
  NAME(carve)(p, &w, scratch, team->rank, team->size);
  NAME(part) t = NAME(part_of)(p, task);
  NAME(values_spectra)(p, &w, &t, team);
  int direct = t.lanes == VL && p->os_v == 1, rows = NAME(map_rows)(p, &t);
  REAL *output = (REAL *)p->output + t.example * p->os_b + t.channel * p->os_v;
  const REAL *queries = (const REAL *)p->queries + t.example * p->qs_b;
  for (int z = 0; z < p->depth; z++)
    for (int first = 0; first < p->pairs; first += p->group) {
      int count = p->pairs - first < p->group ? p->pairs - first : p->group;
      NAME(lambda_columns)(p, &w, &t, z, first, count, team);
      barrier(team);
      for (int y = share(rows, team, 0); y < share(rows, team, 1); y++) {
        NAME(row) r = NAME(row_of)(p, &t, z, y);
        NAME(add_content)(p, &w, &t, first, count, y);
        REAL *out_row = direct ? output + r.global * p->os_n : (REAL *)(w.out + r.local * p->h);
        ptrdiff_t out_x = r.step * (direct ? p->os_n : p->h * VL), out_h = direct ? p->os_h : VL;
        for (int g = 0; g < count; g += 2) {
          const REAL *q = queries + r.global * p->qs_n + 2 * (first + g) * p->qs_k;
          int fresh = first + g == 0, both = g + 1 < count, odd = 2 * (first + g + both) + 1 >= p->k;
          for (int e = 0; e <= both; e++) NAME(lambda_row)(p, &w, y, g + e, w.lam + 2 * r.count * e, r.count);
          (both ? NAME(apply_2) : NAME(apply_1))(w.lam, 2 * r.count, q, r.step * p->qs_n, p->qs_h, p->qs_k, out_row, out_x, out_h,
                                                 r.count, p->h, fresh, odd);
        }
        if (!direct && first + count == p->pairs)
          NAME(copy_row)(r, p->h, t.lanes, w.out, output, p->os_n, p->os_h, p->os_v, 1);
      }
      barrier(team);
    }
}

/* ---- backward ---- */

/* lane i of the result is the sum of the lanes of x[i] */
#define OWN(i, bit) ((i) & (bit) ? VL + (i) : (i))
#define OTHER(i, bit) ((i) & (bit) ? VL + ((i) ^ (bit)) : ((i) ^ (bit)))
#define LANES_4(F, i, bit) F(i, bit), F(i + 1, bit), F(i + 2, bit), F(i + 3, bit)
#define LANES_8(F, i, bit) LANES_4(F, i, bit), LANES_4(F, i + 4, bit)
#if VL == 16
#define LANES(F, bit) LANES_8(F, 0, bit), LANES_8(F, 8, bit)
#elif VL == 8
#define LANES(F, bit) LANES_8(F, 0, bit)
#elif VL == 4
#define LANES(F, bit) LANES_4(F, 0, bit)
#else
#error "VL must be 4, 8 or 16"
#endif
#define COMBINE(a, b, bit) \
  (__builtin_shufflevector(a, b, LANES(OWN, bit)) + __builtin_shufflevector(a, b, LANES(OTHER, bit)))
INLINE vec NAME(sum_lanes)(vec *x) {
  UNROLL for (int i = 0; i < VL / 2; i++) x[i] = COMBINE(x[2 * i], x[2 * i + 1], 1);
  UNROLL for (int i = 0; i < VL / 4; i++) x[i] = COMBINE(x[2 * i], x[2 * i + 1], 2);
#if VL >= 8
  UNROLL for (int i = 0; i < VL / 8; i++) x[i] = COMBINE(x[2 * i], x[2 * i + 1], 4);
#endif
#if VL >= 16
  x[0] = COMBINE(x[0], x[1], 8);
#endif
  return x[0];
}

/* dq[x][h][4] (+)= sum over lanes of grad_out[x][h] lambda[4 depths] */
#define ITEMS (VL / 4)
static __attribute__((noinline)) void NAME(query_gradients)(const vec *even, const vec *odd, const vec *grad_out, ptrdiff_t grad_x,
                                                            REAL *dq, ptrdiff_t dq_x, ptrdiff_t dq_h, ptrdiff_t dq_k, const int *position,
                                                            int items, int h) {
  for (int item = 0; item < items; item += ITEMS) {
    vec prod[VL];
    UNROLL for (int l = 0; l < ITEMS; l++) {
      int i = item + l < items ? item + l : item;
      ptrdiff_t x = position[i], j = i - x * h;
      vec grad = grad_out[x * grad_x + j];
      prod[4 * l] = grad * even[2 * x + 1];
      prod[4 * l + 1] = grad * even[2 * x];
      prod[4 * l + 2] = grad * odd[2 * x + 1];
      prod[4 * l + 3] = grad * odd[2 * x];
    }
    vec sum = NAME(sum_lanes)(prod);
    for (int l = 0; l < ITEMS && item + l < items; l++) {
      ptrdiff_t x = position[item + l], j = item + l - x * h;
      REAL *to = dq + x * dq_x + j * dq_h, *sums = (REAL *)&sum + 4 * l;
      if (dq_k == 1)
        memcpy(to, sums, 4 * sizeof(REAL));
      else
        for (int k = 0; k < 4; k++) to[k * dq_k] = sums[k];
    }
  }
}

/* gradients of lambdas of one row: lam[x] = (dlambda_k, dlambda_{k+1}) */
#define OUTER(COUNT)                                                                                                             \
  static __attribute__((noinline)) void NAME(outer_##COUNT)(vec *lam, ptrdiff_t lam_stride, const REAL *q, ptrdiff_t q_x,        \
                                                            ptrdiff_t q_h, ptrdiff_t q_k, const vec *grad_out, ptrdiff_t grad_x, \
                                                            int width, int h, int odd) {                                         \
    ptrdiff_t last = odd ? 0 : q_k;                                                                                              \
    for (int x = 0; x < width; x++) {                                                                                            \
      vec a[COUNT], b[COUNT];                                                                                                    \
      UNROLL for (int g = 0; g < COUNT; g++) a[g] = b[g] = (vec){0};                                                             \
      for (int j = 0; j < h; j++) {                                                                                              \
        vec grad = grad_out[x * grad_x + j];                                                                                     \
        const REAL *c = q + x * q_x + j * q_h;                                                                                   \
        UNROLL for (int g = 0; g < COUNT; g++) {                                                                                 \
          a[g] += grad * c[2 * g * q_k];                                                                                         \
          b[g] += grad * c[2 * g * q_k + (g == COUNT - 1 ? last : q_k)];                                                         \
        }                                                                                                                        \
      }                                                                                                                          \
      if (odd) b[COUNT - 1] = (vec){0};                                                                                          \
      UNROLL for (int g = 0; g < COUNT; g++) {                                                                                   \
        lam[g * lam_stride + 2 * x] = a[g];                                                                                      \
        lam[g * lam_stride + 2 * x + 1] = b[g];                                                                                  \
      }                                                                                                                          \
    }                                                                                                                            \
  }
OUTER(1)
OUTER(2)

/* One column of D: sums[f] += sum over lanes of V^[f]* D[f];  G[f] += R'^[f]* D[f], or mirrored, with V^ and G at -f,
 * G[-f] += R'^[f] D[f]*. */
#define FREQUENCIES (VL / 2)
#define CONSUME(NAME_, INDEX, SIGN)                                                                                          \
  static __attribute__((noinline)) void NAME(NAME_)(const vec *D, const vec *spectrum, const REAL *R, vec *grad, REAL *sums, \
                                                    int N, int mirror) {                                                     \
    for (int first = 0; first < N; first += FREQUENCIES) {                                                                   \
      vec prod[VL];                                                                                                          \
      UNROLL for (int l = 0; l < FREQUENCIES; l++) {                                                                         \
        int f = first + l;                                                                                                   \
        if (f >= N) {                                                                                                        \
          prod[2 * l] = prod[2 * l + 1] = (vec){0};                                                                          \
          continue;                                                                                                          \
        }                                                                                                                    \
        int at = INDEX;                                                                                                      \
        vec dr = D[2 * f], di = D[2 * f + 1], vr = spectrum[2 * at], vi = spectrum[2 * at + 1];                              \
        REAL a = R[2 * f], c = R[2 * f + 1];                                                                                 \
        grad[2 * at] += dr * a + di * c;                                                                                     \
        grad[2 * at + 1] += SIGN(di * a - dr * c);                                                                           \
        prod[2 * l] = vr * dr + SIGN(vi * di);                                                                               \
        prod[2 * l + 1] = vr * di - SIGN(vi * dr);                                                                           \
      }                                                                                                                      \
      vec sum = NAME(sum_lanes)(prod);                                                                                       \
      REAL *to = sums + 2 * first;                                                                                           \
      if (first + FREQUENCIES <= N)                                                                                          \
        *(vec_unaligned *)to += sum;                                                                                         \
      else                                                                                                                   \
        for (int l = 0; l < 2 * (N - first); l++) to[l] += sum[l];                                                           \
    }                                                                                                                        \
  }
CONSUME(consume, f, +)
CONSUME(consume_mirrored, (mirror - f < N ? mirror - f : 0), -)

/* gradients of values of one slice from G (half spectrum): inverse DFTs of columns */
static __attribute__((noinline)) void NAME(values_gradient_columns)(const problem *p, NAME(work) *w, const NAME(part) *t, vec *grad,
                                                                    team *team) {
  const axis *a1 = &p->axes[0];
  int N1 = a1->n, F2 = p->axes[1].n / 2 + 1, limit = NAME(row_limit)(p, t);
  for (int f = share(F2, team, 0); f < share(F2, team, 1); f++) { /* inverse: swap twice */
    vec *column = grad + 2 * (ptrdiff_t)f * N1;
    for (int i = 0; i < N1; i++) {
      vec real = column[2 * i];
      column[2 * i] = column[2 * i + 1];
      column[2 * i + 1] = real;
    }
    NAME(dft)(a1, w->tmp, column, 2, N1, column, 2, limit);
  }
}
/* and of rows begin .. end - 1 (begin even), stored or added */
static __attribute__((noinline)) void NAME(values_gradient_rows)(const problem *p, NAME(work) *w, const NAME(part) *t, vec *grad,
                                                                 REAL *out, int begin, int end, int add) {
  const axis *a2 = &p->axes[1];
  int N1 = p->axes[0].n, N2 = a2->n, F2 = N2 / 2 + 1;
  const REAL *cross = p->cross;
  for (int y = begin; y < end; y += 2) {
    int pair = y + 1 < end;
    if (!NAME(is_row)(p, t, y) && !(pair && NAME(is_row)(p, t, y + 1))) continue;
    for (int f = 0; f < F2; f++) {
      vec *c = grad + 2 * ((ptrdiff_t)f * N1 + y);
      if (cross) {
        NAME(turn)(c, cross + 2 * ((ptrdiff_t)y * N2 + f));
        if (pair) NAME(turn)(c + 2, cross + 2 * ((ptrdiff_t)(y + 1) * N2 + f));
      }
      vec ai = c[0], ar = c[1], bi = {0}, br = {0};
      if (pair) {
        bi = c[2];
        br = c[3];
      }
      if (f == 0 || 2 * f == N2) { /* Z = Re a + i Re b, swapped */
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
        vec s = w->line[2 * x + 1 - e];
        NAME(store_lanes)(o, p->dv_v, add ? s + NAME(load_lanes)(o, p->dv_v, t->lanes) : s, t->lanes);
      }
  }
}

/* dlambda, its transform D, and what follows from D, for pairs first .. first + count - 1 of slice z */
static void NAME(adjoint_columns)(const problem *p, NAME(work) *w, int z, int first, int count, int rows, team *team) {
  const axis *a = &p->axes[0];
  int N1 = a->n, N2 = p->axes[1].n, F2 = N2 / 2 + 1, terms = p->depth_scope * p->u, slot;
  ptrdiff_t ms = NAME(map_stride)(p);
  /* columns f and N2 - f contribute to the same G */
  for (int column = share(F2, team, 0); column < share(F2, team, 1); column++)
    for (int i = 0; i < (column == 0 || 2 * column == N2 ? count : 2 * count); i++) {
      int mirrored = i >= count, g = i - mirrored * count, c = mirrored ? N2 - column : column;
      vec *in = w->map + 2 * ((ptrdiff_t)g * N2 + c);
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

__attribute__((visibility("hidden"))) void NAME(backward_task)(const problem *p, char *scratch, int task, order *turns, team *team) {
  NAME(work) w;
  NAME(carve)(p, &w, scratch, team->rank, team->size);
  NAME(part) t = NAME(part_of)(p, task);
  int N2 = p->axes[1].n, h = p->h, rows = NAME(map_rows)(p, &t), slots = p->depth * p->u;
  int adjoint = p->grad_values || p->grad_spectra || p->grad_content, direct = NAME(dq_direct)(p);
  int cols = p->sequence ? N2 : p->tile[1];
  ptrdiff_t K = NAME(padded_depth)(p);
  for (int item = 0; item < cols * h; item++) w.position[item] = item / h;
  size_t zeros = slots * NAME(spectrum_size)(p), own = NAME(table_size)(p), from = share(zeros, team, 0);
  memset(w.grad + from, 0, (share(zeros, team, 1) - from) * sizeof(vec));
  from = share(own, team, 0);
  memset(w.grad_table + from, 0, (share(own, team, 1) - from) * sizeof(REAL));
  if (team->rank == 0) memset(w.grad_content, 0, 2 * p->pairs * sizeof(vec));
  NAME(values_spectra)(p, &w, &t, team);
  REAL *grad_out = (REAL *)p->grad_output + t.example * p->gs_b + t.channel * p->gs_v;
  const REAL *queries = (const REAL *)p->queries + t.example * p->qs_b;
  REAL *grad_queries = (REAL *)p->grad_queries + t.example * p->dq_b;
  for (int z = 0; z < p->depth; z++) {
    for (int y = share(rows, team, 0); y < share(rows, team, 1); y++) {
      NAME(copy_row)(NAME(row_of)(p, &t, z, y), h, t.lanes, w.out, grad_out, p->gs_n, p->gs_h, p->gs_v, 0);
    }
    for (int first = 0; first < p->pairs; first += p->group) {
      int count = p->pairs - first < p->group ? p->pairs - first : p->group;
      if (p->grad_queries) {
        NAME(lambda_columns)(p, &w, &t, z, first, count, team);
        barrier(team);
      }
      for (int y = share(rows, team, 0); y < share(rows, team, 1); y++) {
        NAME(row) r = NAME(row_of)(p, &t, z, y);
        if (p->grad_queries) NAME(add_content)(p, &w, &t, first, count, y);
        const vec *grad_row = w.out + r.local * h;
        vec *map = w.map + y * NAME(map_stride)(p), *second = w.lam + 2 * r.count;
        for (int s = 0; s < count; s += 2) {
          int both = s + 1 < count, k = 2 * (first + s), odd = k + 2 * both + 1 >= p->k;
          const REAL *q = queries + r.global * p->qs_n + k * p->qs_k;
          if (p->grad_queries) {
            for (int e = 0; e <= both; e++) NAME(lambda_row)(p, &w, y, s + e, w.lam + 2 * r.count * e, r.count);
            if (!both) memset(second, 0, 2 * r.count * sizeof(vec));
            REAL *dq = direct ? grad_queries + r.global * p->dq_n + k * p->dq_k : w.dq + r.local * h * K + k;
            NAME(query_gradients)(w.lam, second, grad_row, r.step * h, dq, r.step * (direct ? p->dq_n : h * K), direct ? p->dq_h : K,
                                  direct ? p->dq_k : 1, w.position, r.count * h, h);
          }
          if (!adjoint) continue;
          (both ? NAME(outer_2) : NAME(outer_1))(w.lam, 2 * r.count, q, r.step * p->qs_n, p->qs_h, p->qs_k, grad_row, r.step * h,
                                                 r.count, h, odd);
          for (int e = 0; e <= both; e++)
            NAME(dft)(&p->axes[1], w.tmp, w.lam + 2 * r.count * e, 2, r.count, map + 2 * (ptrdiff_t)(s + e) * N2, 2, N2);
        }
      }
      barrier(team);
      if (adjoint) NAME(adjoint_columns)(p, &w, z, first, count, rows, team);
      barrier(team);
    }
  }

  /* sums over tasks, in order */
  if (p->grad_queries && !direct) {
    begin_turn(turns, SEGMENTS, task, team);
    for (int z = 0; z < p->depth; z++)
      for (int y = share(rows, team, 0); y < share(rows, team, 1); y++) {
        NAME(row) r = NAME(row_of)(p, &t, z, y);
        for (int x = 0; x < r.count; x++)
          for (int j = 0; j < h; j++) {
            REAL *o = grad_queries + (r.global + r.step * x) * p->dq_n + j * p->dq_h;
            const REAL *s = w.dq + ((r.local + r.step * x) * h + j) * K;
            for (int k = 0; k < p->k; k++) o[k * p->dq_k] = t.channel == 0 ? s[k] : o[k * p->dq_k] + s[k];
          }
      }
    end_turn(turns, SEGMENTS, task, team);
  }
  if (p->grad_content) {
    begin_turn(turns, SEGMENTS + 1, task, team);
    for (int k = 0; k < p->k && team->rank == 0; k++) {
      REAL *o = (REAL *)p->grad_content + ((ptrdiff_t)t.example * p->k + k) * p->v + t.channel;
      NAME(store_lanes)(o, 1, t.tile ? w.grad_content[k] + NAME(load_lanes)(o, 1, t.lanes) : w.grad_content[k], t.lanes);
    }
    end_turn(turns, SEGMENTS + 1, task, team);
  }
  if (p->grad_spectra)
    for (int s = 0, segments = team->size > 1 ? 1 : SEGMENTS; s < segments; s++) { /* a pipeline of teams of one */
      begin_turn(turns, s, task, team);
      size_t at = own * (s * team->size + team->rank) / (segments * team->size);
      size_t end = own * (s * team->size + team->rank + 1) / (segments * team->size);
      for (REAL *total = p->grad_spectra; at < end; at++) total[at] = task == 0 ? w.grad_table[at] : total[at] + w.grad_table[at];
      end_turn(turns, s, task, team);
    }
  if (p->grad_values) {
    int add = num_tiles(p) > 1, pairs = (NAME(row_limit)(p, &t) + 1) / 2;
    int end = share(pairs, team, 1) * 2 < NAME(row_limit)(p, &t) ? share(pairs, team, 1) * 2 : NAME(row_limit)(p, &t);
    size_t size = NAME(spectrum_size)(p);
    REAL *out = (REAL *)p->grad_values + t.example * p->dv_b + t.channel * p->dv_v;
    for (int i = 0; i < slots; i++) NAME(values_gradient_columns)(p, &w, &t, w.grad + i * size, team);
    barrier(team);
    if (add) begin_turn(turns, SEGMENTS + 2, task, team);
    for (int z = 0; z < p->depth; z++)
      for (int u = 0; u < p->u; u++)
        NAME(values_gradient_rows)(p, &w, &t, w.grad + ((size_t)z * p->u + u) * size,
                                   out + (ptrdiff_t)z * p->H * p->W * p->dv_n + u * p->dv_u, share(pairs, team, 0) * 2, end, add);
    if (add) end_turn(turns, SEGMENTS + 2, task, team);
  }
}

/* ---- tables: lanes are pairs of query depths ---- */
#ifdef TABLES

/* A number of a table or of spectra, which are float32 for the kernels of float32. */
INLINE REAL NAME(get)(const void *from, size_t i, int is_float) { return is_float ? ((const float *)from)[i] : ((const REAL *)from)[i]; }
INLINE void NAME(put)(void *to, size_t i, REAL x, int is_float) {
  if (is_float)
    ((float *)to)[i] = (float)x;
  else
    ((REAL *)to)[i] = x;
}

__attribute__((visibility("hidden"))) size_t NAME(table_bytes)(const problem *p) {
  size_t N1 = p->axes[0].n, N2 = p->axes[1].n, longest = N1 > N2 ? N1 : N2;
  return (2 * N1 * N2 + 6 * longest) * sizeof(vec);
}

/* VL pairs from `first` on, of one depth offset and u. Maps are [i1][f2]. */
typedef struct {
  const problem *p;
  problem table; /* H, W: sides of the table */
  NAME(part) t;  /* index i of an axis holds offset i, or i - N of the last ones: as positions before + offset of a map */
  vec *map, *line, *tmp;
  size_t table_at, spectrum_at; /* indices of the first pair: of its first depth at the first offset, of its first frequency */
  int depths, lanes, is_float;
  REAL scale;
} NAME(pairs);

static void NAME(table_to_spectrum)(const NAME(pairs) *w) {
  const problem *p = w->p;
  const axis *a1 = &p->axes[0], *a2 = &p->axes[1];
  const REAL *cross = p->cross;
  int N1 = a1->n, N2 = a2->n;
  for (int i = 0; i < N1; i++) {
    vec *row = w->map + 2 * (size_t)i * N2;
    if (!NAME(is_row)(&w->table, &w->t, i)) {
      memset(row, 0, 2 * (size_t)N2 * sizeof(vec));
      continue;
    }
    for (int x = 0; x < N2; x++) {
      ptrdiff_t at = NAME(source)(&w->table, &w->t, i, x);
      w->line[2 * x] = w->line[2 * x + 1] = (vec){0};
      if (at < 0) continue;
      for (int k = 0; k < w->depths; k++) /* swapped */
        w->line[2 * x + 1 - k % 2][k / 2] = NAME(get)(p->table, w->table_at + (at * p->k + k) * p->u, w->is_float);
    }
    NAME(dft)(a2, w->tmp, w->line, 2, N2, row, 2, N2);
  }
  for (int f = 0; f < N2; f++) {
    if (cross)
      NAME(dft_twiddled)(a1, w->tmp, w->map + 2 * f, 2 * (ptrdiff_t)N2, cross + 2 * f, N2, w->line, 2, N1);
    else
      NAME(dft)(a1, w->tmp, w->map + 2 * f, 2 * (ptrdiff_t)N2, N1, w->line, 2, N1);
    for (int l = 0; l < w->lanes; l++)
      for (int i = 0; i < N1; i++) {
        size_t at = w->spectrum_at + NAME(table_column)(p, 0, l, f) + 2 * i;
        NAME(put)(p->spectrum, at, w->line[2 * i + 1][l] * w->scale, w->is_float);
        NAME(put)(p->spectrum, at + 1, w->line[2 * i][l] * w->scale, w->is_float);
      }
  }
}

static void NAME(spectrum_to_table)(const NAME(pairs) *w) {
  const problem *p = w->p;
  const axis *a1 = &p->axes[0], *a2 = &p->axes[1];
  const REAL *cross = p->cross;
  int N1 = a1->n, N2 = a2->n;
  for (int f = 0; f < N2; f++) {
    for (int l = 0; l < w->lanes; l++)
      for (int i = 0; i < N1; i++) {
        size_t at = w->spectrum_at + NAME(table_column)(p, 0, l, f) + 2 * i;
        w->line[2 * i][l] = NAME(get)(p->grad_spectra, at, w->is_float);
        w->line[2 * i + 1][l] = NAME(get)(p->grad_spectra, at + 1, w->is_float);
      }
    NAME(dft)(a1, w->tmp, w->line, 2, N1, w->map + 2 * f, 2 * (ptrdiff_t)N2, N1);
  }
  for (int i = 0; i < N1; i++) {
    if (!NAME(is_row)(&w->table, &w->t, i)) continue;
    const vec *row = w->map + 2 * (size_t)i * N2;
    if (cross)
      NAME(dft_twiddled)(a2, w->tmp, row, 2, cross + 2 * (ptrdiff_t)i * N2, 1, w->line, 2, N2);
    else
      NAME(dft)(a2, w->tmp, row, 2, N2, w->line, 2, N2);
    for (int x = 0; x < N2; x++) {
      ptrdiff_t at = NAME(source)(&w->table, &w->t, i, x);
      for (int k = 0; k < w->depths && at >= 0; k++)
        NAME(put)(p->grad_table, w->table_at + (at * p->k + k) * p->u, w->line[2 * x + k % 2][k / 2] * w->scale, w->is_float);
    }
  }
}

/* spectrum = R'^ of the table, or grad_table from grad_spectra */
__attribute__((visibility("hidden"))) void NAME(transform_tables)(const problem *p, char *scratch, int is_float) {
  size_t N1 = p->axes[0].n, N2 = p->axes[1].n, longest = N1 > N2 ? N1 : N2;
  vec *map = (vec *)scratch, *line = map + 2 * N1 * N2, *tmp = line + 2 * longest;
  NAME(pairs) w = {.p = p, .table = *p, .map = map, .line = line, .tmp = tmp, .is_float = is_float, .scale = (REAL)1 / (N1 * N2)};
  for (int d = 0; d < 2; d++) {
    w.t.start[d] = w.t.behind[d] = p->before[d];
    w.t.ahead[d] = p->after[d] + 1;
  }
  w.table.H = p->before[0] + 1 + p->after[0];
  w.table.W = p->before[1] + 1 + p->after[1];
  for (int slot = 0; slot < p->depth_scope * p->u; slot++)
    for (int first = 0; first < p->pairs; first += VL) {
      w.lanes = p->pairs - first < VL ? p->pairs - first : VL;
      w.depths = p->k - 2 * first < 2 * VL ? p->k - 2 * first : 2 * VL;
      w.table_at = ((size_t)(slot / p->u) * w.table.H * w.table.W * p->k + 2 * first) * p->u + slot % p->u;
      w.spectrum_at = NAME(table_column)(p, slot, first, 0);
      (p->grad_table ? NAME(spectrum_to_table) : NAME(table_to_spectrum))(&w);
    }
}
#endif
