/* pool.c - owns the worker threads. Invariant: between two pool_run calls no worker touches the
 * job; a worker sees a job only after `turn` moved, and the caller returns only when every worker
 * has counted itself done. */
#include "base/pool.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SPIN       4000 /* pauses before a worker sleeps: some tens of microseconds */
#define MAX_WORKER 256

typedef struct pool_worker {
    pool *p;
    int index;
    pthread_t thread;
} pool_worker;

struct pool {
    int n;
    pool_worker w[MAX_WORKER];
    void (*fn)(void *arg, int worker, int n_worker);
    void *arg;
    _Atomic unsigned turn; /* a new job or the end: moves by one */
    _Atomic int n_done;
    _Atomic int n_asleep;
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

static void relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Round to nearest, subnormals kept: the bits of docs/numerics.md need both. */
static void set_float_mode(void)
{
    fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() & ~(unsigned)0x8040);
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr & ~((uint64_t)1 << 24)));
#endif
}

/* Waits until turn differs from seen. */
static void wait_turn(pool *p, unsigned seen)
{
    for (int i = 0; i < SPIN; i++) {
        if (atomic_load_explicit(&p->turn, memory_order_acquire) != seen) return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while (atomic_load(&p->turn) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    pool_worker *w = arg;
    pool *p = w->p;
    unsigned seen = 0;
    set_float_mode();
    for (;;) {
        wait_turn(p, seen);
        seen++;
        if (atomic_load(&p->stop)) return NULL;
        p->fn(p->arg, w->index, p->n);
        atomic_fetch_add_explicit(&p->n_done, 1, memory_order_acq_rel);
    }
}

static void next_turn(pool *p)
{
    atomic_fetch_add(&p->turn, 1);
    if (atomic_load(&p->n_asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

static int cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > MAX_WORKER ? MAX_WORKER : n;
}

corun_status pool_open(pool **out, int n)
{
    *out = NULL;
    if (n < 0 || n > MAX_WORKER)
        FAIL(CORUN_EINVAL, "threads: %d is not in 0 ... %d", n, MAX_WORKER);
    pool *p = mem_alloc(1, sizeof *p, "thread pool");
    if (!p) return CORUN_ENOMEM;
    int want = n ? n : cores();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->n = 1;
    for (int i = 1; i < want; i++) {
        p->w[i] = (pool_worker){.p = p, .index = i};
        int e = pthread_create(&p->w[i].thread, NULL, worker_main, &p->w[i]);
        if (e != 0) {
            pool_close(p);
            FAIL(CORUN_ENOMEM, "thread %d of %d: %s", i + 1, want, strerror(e));
        }
        p->n = i + 1;
    }
    *out = p;
    return CORUN_OK;
}

void pool_close(pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    next_turn(p);
    for (int i = 1; i < p->n; i++) pthread_join(p->w[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

int pool_size(const pool *p) { return p->n; }

void pool_run(pool *p, void (*fn)(void *, int, int), void *arg)
{
    set_float_mode();
    if (p->n > 1) {
        p->fn = fn;
        p->arg = arg;
        atomic_store(&p->n_done, 0);
        next_turn(p);
    }
    fn(arg, 0, p->n);
    for (int i = 0; atomic_load_explicit(&p->n_done, memory_order_acquire) < p->n - 1; i++) {
        if (i < SPIN)
            relax();
        else
            sched_yield();
    }
    if (p->n > 1) atomic_store(&p->n_done, 0);
}

void pool_slice(int64_t n, int64_t unit, int worker, int n_worker, int64_t *begin, int64_t *end)
{
    int64_t blocks = (n + unit - 1) / unit;
    int64_t b = blocks * worker / n_worker * unit, e = blocks * (worker + 1) / n_worker * unit;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}
