/* Entry points of the library: a parallel loop over tasks (example, block of value channels, tile of the grid).
 *
 * A library is compiled for one instruction set and has three kernels: float32 in wide and in narrow vectors, float64.
 * Threads are those of the OpenMP runtime that PyTorch has loaded, if it is known, or else new ones. */
#include "native.h"
#include <stdlib.h>
#ifndef _WIN32
#include <pthread.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
/* Where narrow vectors would be those of the wide kernel, NARROW is "wide". */
#define FOR_EACH_KERNEL(X) X(wide) FOR_NARROW(X, NARROW) X(float64)
#define FOR_NARROW(X, kernel) X(kernel)
#define DECLARE(kernel)                                   \
  int lanes_##kernel(void);                               \
  size_t scratch_bytes_##kernel(const problem *, int);    \
  int num_tasks_##kernel(const problem *);                \
  void forward_task_##kernel(const problem *, char *, int, order *, team *); \
  void backward_task_##kernel(const problem *, char *, int, order *, team *);
FOR_EACH_KERNEL(DECLARE)
size_t table_bytes_float64(const problem *);
void transform_tables_float64(const problem *, char *, int);

static const struct {
  int (*lanes)(void);
  size_t (*scratch_bytes)(const problem *, int);
  int (*num_tasks)(const problem *);
  void (*task[2])(const problem *, char *, int, order *, team *); /* forward, backward */
} kernels[] = {
#define ENTRY(kernel) {lanes_##kernel, scratch_bytes_##kernel, num_tasks_##kernel, {forward_task_##kernel, backward_task_##kernel}},
    FOR_EACH_KERNEL(ENTRY)
};

enum { MAX_THREADS = 256, PAGE = 4096, HUGE_PAGE = 2 << 20 };
static const size_t MAX_BYTES = 1 << 30; /* of all teams, if there is more than one */

typedef struct {
  int arrived, generation, task;
  char *scratch;
  char padding[40]; /* one cache line per team */
} shared_team;

typedef struct {
  const problem *problem;
  int kernel, tasks, threads, team_size, backward;
  size_t bytes; /* working memory of a team */
  int next_task, next_thread;
  int present;              /* threads that were started; 0 until it is known */
  int (*num_threads)(void); /* of a region of OpenMP, or NULL */
  order order;
  shared_team teams[MAX_THREADS];
} job;

/* Working memory that a thread keeps for its next call, until it ends. */
static __thread char *kept;
static __thread size_t kept_bytes;
#ifdef _WIN32
enum { MAX_KEPT = 0 };
#else
enum { MAX_KEPT = 16 << 20 };
static pthread_key_t kept_key;
static pthread_once_t kept_once = PTHREAD_ONCE_INIT;
static void create_kept_key(void) { pthread_key_create(&kept_key, free); }
#endif

static char *allocate(size_t bytes) {
#ifdef _WIN32
  return _aligned_malloc(bytes, PAGE);
#else
  void *memory = 0;
  size_t alignment = bytes > 2 * HUGE_PAGE ? HUGE_PAGE : PAGE;
  if (posix_memalign(&memory, alignment, bytes)) return 0;
#ifdef MADV_HUGEPAGE /* columns of large maps are far apart */
  if (alignment == HUGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
#endif
}

static void release(char *memory) {
#ifdef _WIN32
  _aligned_free(memory);
#else
  free(memory);
#endif
}

/* Larger working memory: the process keeps one piece for the next call, whose pages need not be cleared again. */
enum { MAX_SHARED = 256 << 20 };
static size_t *shared; /* its first page has its size */

static char *take_shared(size_t bytes) {
  size_t *memory = __atomic_exchange_n(&shared, 0, __ATOMIC_ACQ_REL);
  if (memory && *memory < bytes) {
    release((char *)memory);
    memory = 0;
  }
  if (!memory) {
    memory = (size_t *)allocate(PAGE + bytes);
    if (!memory) return 0;
    *memory = bytes;
  }
  return (char *)memory + PAGE;
}

static void give_shared(char *scratch) {
  if (!scratch) return;
  size_t *memory = (size_t *)(scratch - PAGE);
  ALLOW(scratch, *memory);
  if (*memory <= MAX_SHARED) memory = __atomic_exchange_n(&shared, memory, __ATOMIC_ACQ_REL);
  if (memory) release((char *)memory);
}

static char *get_scratch(size_t bytes) {
  if (bytes > MAX_KEPT) return take_shared(bytes);
  ALLOW(kept, kept_bytes);
  if (kept_bytes < bytes) {
    release(kept);
    kept = allocate(bytes);
    kept_bytes = kept ? bytes : 0;
#ifndef _WIN32
    pthread_once(&kept_once, create_kept_key);
    pthread_setspecific(kept_key, kept);
#endif
  }
#ifdef LAMBDANETS_DEBUG
  if (kept) memset(kept, 0xff, kept_bytes);
  FORBID(kept + bytes, kept_bytes - bytes);
#endif
  return kept;
}

static void work_on(void *data) {
  job *j = data;
  int thread = __atomic_fetch_add(&j->next_thread, 1, __ATOMIC_RELAXED);
  int present = j->num_threads ? j->num_threads() : __atomic_load_n(&j->present, __ATOMIC_ACQUIRE);
  for (; !present; present = __atomic_load_n(&j->present, __ATOMIC_ACQUIRE)) sched_yield();
  /* Fewer threads than asked for may be started. A team would wait for the others forever, so each works alone. */
  int alone = present != j->threads;
  int index = alone ? thread : thread / j->team_size;
  if (index >= (alone ? MAX_THREADS : j->threads / j->team_size)) return;
  shared_team *mine = &j->teams[index];
  team members = {alone ? 0 : thread % j->team_size, alone ? 1 : j->team_size, &mine->arrived, &mine->generation};
  if (members.rank == 0) mine->scratch = get_scratch(j->bytes);
  for (;;) {
    if (members.rank == 0)
      mine->task = mine->scratch ? __atomic_fetch_add(&j->next_task, 1, __ATOMIC_RELAXED) : j->tasks;
    barrier(&members);
    if (mine->task >= j->tasks) break;
    kernels[j->kernel].task[j->backward](j->problem, mine->scratch, mine->task, &j->order, &members);
    barrier(&members);
  }
  barrier(&members);
  if (members.rank == 0 && j->bytes > MAX_KEPT) give_shared(mine->scratch);
}

#ifndef _WIN32
static void *start_thread(void *data) {
  work_on(data);
  return 0;
}
#endif

/* Number of value channels in a vector of a kernel. */
EXPORT int lambdanets_lanes(int kernel) { return kernels[kernel].lanes(); }

/* Bytes of a `problem`, so that the caller can check that it has the same fields. */
EXPORT size_t lambdanets_problem_bytes(void) { return sizeof(problem); }

EXPORT size_t lambdanets_scratch_bytes(const problem *p, int kernel) { return kernels[kernel].scratch_bytes(p, 1); }

/* Compute the output, or gradients if there is a gradient of the output; return 0, or 1 if memory ran out.
 * gomp_parallel, num_threads: GOMP_parallel and omp_get_num_threads of PyTorch's OpenMP runtime, or NULL.
 * With fewer tasks than threads, or large working memory, teams of equal size share tasks; results do not depend on it. */
EXPORT int lambdanets_run(const problem *p, int kernel, int threads, void *gomp_parallel, void *num_threads) {
  job *j = calloc(1, sizeof(job));
  if (!j) return 1;
  j->problem = p;
  j->kernel = kernel;
  j->backward = p->grad_output != 0;
  j->tasks = kernels[kernel].num_tasks(p);
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  int teams = threads < j->tasks ? threads : j->tasks;
  while (teams > 1 && teams * kernels[kernel].scratch_bytes(p, threads / teams) > MAX_BYTES) teams--;
  if (teams < 1) teams = 1;
  j->team_size = threads / teams;
  j->threads = teams * j->team_size;
  j->bytes = (kernels[kernel].scratch_bytes(p, j->team_size) + PAGE - 1) / PAGE * PAGE;
#ifdef _WIN32
  j->team_size = j->threads = j->present = 1;
  work_on(j);
#else
  if (j->threads <= 1) {
    j->present = 1;
    work_on(j);
  } else if (gomp_parallel) {
    j->num_threads = (int (*)(void))num_threads;
    ((void (*)(void (*)(void *), void *, unsigned, unsigned))gomp_parallel)(work_on, j, j->threads, 0);
  } else {
    pthread_t ids[MAX_THREADS];
    int started = 1;
    while (started < j->threads && !pthread_create(&ids[started], 0, start_thread, j)) started++;
    __atomic_store_n(&j->present, started, __ATOMIC_RELEASE);
    work_on(j);
    for (int t = 1; t < started; t++) pthread_join(ids[t], 0);
  }
#endif
  int failed = j->next_task < j->tasks;
  free(j);
  return failed;
}

/* Compute spectra of p->table, or p->grad_table from the gradient of spectra; return 0, or 1 if memory ran out.
 * Twiddles are in float64; is_float: whether tables and spectra are in float32. */
EXPORT int lambdanets_transform_tables(const problem *p, int is_float) {
  size_t bytes = (table_bytes_float64(p) + PAGE - 1) / PAGE * PAGE;
  char *scratch = get_scratch(bytes);
  if (!scratch) return 1;
  transform_tables_float64(p, scratch, is_float);
  if (bytes > MAX_KEPT) give_shared(scratch);
  return 0;
}
