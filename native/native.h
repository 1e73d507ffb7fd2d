/* What the kernels and dispatch.c share: a problem, teams of threads, and sums in a fixed order. */
#ifndef LAMBDANETS_NATIVE_H
#define LAMBDANETS_NATIVE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define sched_yield SwitchToThread
#else
#include <sched.h>
#endif

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* sanitize.py compiles with it: gaps in working memory may not be touched, and its first content is NaN. */
#ifdef LAMBDANETS_DEBUG
#include <sanitizer/asan_interface.h>
#define FORBID(p, bytes) ASAN_POISON_MEMORY_REGION(p, bytes)
#define ALLOW(p, bytes) ASAN_UNPOISON_MEMORY_REGION(p, bytes)
enum { GAP = 4096 };
#else
#define FORBID(p, bytes)
#define ALLOW(p, bytes)
enum { GAP = 128 };
#endif
#define INLINE static inline __attribute__((always_inline))

/* A DFT of length n = f[0] f[1] (f[2]) in 2 or 3 passes; twiddles[l]: exp(-2 pi i a b / (f[l] rest)) as [b < rest][a < f[l]].
 * Outputs with strides of at least `streamed` vectors bypass the cache. */
typedef struct {
  int n, levels, f[3];
  ptrdiff_t streamed;
  const void *twiddles[2];
} axis;

/* Grids (depth, H, W); sequences have depth = H = 1 and `sequence` set, and are transformed as maps of N1 x N2 with
 * n = n1 + N1 n2 and f = N2 f1 + f2 (four steps), `cross` = exp(-2 pi i n1 f2 / (N1 N2)) as [n1][f2].
 * Tiles: outputs y0 .. y0 + tile[0] - 1 of each axis, computed from positions y0 - before .. y0 + tile[0] - 1 + after;
 * tasks use before and after only if there is more than one tile, else the padding is shared by both sides.
 * Strides are in elements; channels (k or v) are contiguous, or maps. */
typedef struct {
  int b, h, k, v, u, depth, H, W, sequence;
  int tile[2], tiles[2], before[2], after[2]; /* rows, columns */
  int depth_before, depth_scope;              /* offsets -depth_before .. of the table along the depth */
  int pairs, group; /* of query depths, and how many of them at once */
  axis axes[2];
  ptrdiff_t qs_b, qs_h, qs_n, qs_k, vs_b, vs_u, vs_n, vs_v, cs_b, cs_k, os_b, os_h, os_n, os_v, gs_b, gs_h, gs_n, gs_v, dq_b, dq_h,
      dq_n, dq_k, dv_b, dv_u, dv_n, dv_v;
  const void *queries, *values, *content, *cross, *table; /* table: [depth offset][row][column][k][u] */
  void *spectrum; /* R'^ [depth offset][u][pair][f2][f1] */
  void *output;
  const void *grad_output;
  void *grad_queries, *grad_values, *grad_spectra, *grad_content, *grad_table;
} problem;

/* Threads that work on one task. They share columns, rows and working memory. Results do not depend on `size`. */
typedef struct {
  int rank, size;
  int *arrived, *generation; /* of the barrier */
} team;

static inline void barrier(team *team) {
  if (team->size == 1) return;
#if defined(__x86_64__)
  __builtin_ia32_sfence(); /* non-temporal stores */
#endif
  int generation = __atomic_load_n(team->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(team->arrived, 1, __ATOMIC_ACQ_REL) == team->size) {
    __atomic_store_n(team->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(team->generation, generation + 1, __ATOMIC_RELEASE);
  } else
    for (int spins = 0; __atomic_load_n(team->generation, __ATOMIC_ACQUIRE) == generation; spins++)
      if (spins > 1000) sched_yield(); /* on busy cores, sleeping instead takes longer */
}
/* first index (end = 0) or end (1) of this member's share of `count` */
static inline size_t share(size_t count, const team *team, int end) { return count * (team->rank + end) / team->size; }

/* Sums over tasks in the order of tasks, whatever team runs them: a task waits for its turn at each segment. */
enum { SEGMENTS = 16, TURNS = SEGMENTS + 3 };
typedef struct {
  int turn[TURNS];
} order;

static inline void begin_turn(order *o, int segment, int task, team *team) {
  if (team->rank == 0)
    for (int spins = 0; __atomic_load_n(&o->turn[segment], __ATOMIC_ACQUIRE) != task; spins++)
      if (spins > 1000) sched_yield();
  barrier(team);
}
static inline void end_turn(order *o, int segment, int task, team *team) {
  barrier(team);
  if (team->rank == 0) __atomic_store_n(&o->turn[segment], task + 1, __ATOMIC_RELEASE);
}

static inline int num_tiles(const problem *p) { return p->tiles[0] * p->tiles[1]; }
#endif
